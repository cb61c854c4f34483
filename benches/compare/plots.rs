//! Bars, from the rows of the tables.

use std::io;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::row::{Judge, Row, Section};
use crate::sample::{Samples, Short, Statistic};

/// One group of bars for each thing that is measured, one bar for the library and one for each that it is beside.
pub struct Plot {
    pub file: &'static str,
    pub title: &'static str,
    pub section: Section,
    /// How what is shown begins.
    begins: &'static [&'static str],
    /// Values that are orders of magnitude apart.
    logarithmic: bool,
}

pub const ALL: [&Plot; 4] = [
    &Plot {
        file: "performance-ceilings.svg",
        title: "Load of scattered blocks beside bare programs, GB/s",
        section: Section::Ceilings,
        begins: &["same host, mapped", "same host, process_vm_readv", "tcp, streams: 1"],
        logarithmic: false,
    },
    &Plot {
        file: "performance-rivals.svg",
        title: "Load of scattered blocks beside others, GB/s",
        section: Section::Rivals,
        begins: &["same host, mapped", "tcp", "nixl"],
        logarithmic: false,
    },
    &Plot {
        file: "performance-latency.svg",
        title: "Load of one 16 KiB block, µs",
        section: Section::Latency,
        begins: &["load of one 16 KiB block"],
        logarithmic: true,
    },
    &Plot {
        file: "performance-lookup.svg",
        title: "Lookup, µs",
        section: Section::Control,
        begins: &["lookup"],
        logarithmic: true,
    },
];

const OURS: RGBColor = RGBColor(0x1f, 0x6f, 0xb4);
const THEIRS: [RGBColor; 4] = [
    RGBColor(0x8c, 0x8c, 0x8c),
    RGBColor(0xe0, 0x8a, 0x2b),
    RGBColor(0x5a, 0x9e, 0x4b),
    RGBColor(0xb0, 0x4a, 0x5a),
];
const BAR: i32 = 16;
const BETWEEN_GROUPS: i32 = 14;
const LABELS: i32 = 350;
const BARS: i32 = 330;
/// To the right of the longest bar.
const VALUES: i32 = 260;
const TOP: i32 = 46;

struct Bar {
    name: String,
    value: f64,
    colour: RGBColor,
}

/// Bars of one thing.
struct Group {
    name: String,
    bars: Vec<Bar>,
}

/// Of rows that measure the same: the library once, from all its samples, then the others.
fn bars<'a>(rows: impl Iterator<Item = &'a &'a Row>) -> Vec<Bar> {
    let (mut ours, mut bars) = (Samples::default(), Vec::new());
    let mut statistic = Statistic::Median;
    for row in rows {
        statistic = row.statistic;
        ours.append(&row.ours);
        if let Ok(theirs) = &row.theirs {
            let colour = THEIRS[bars.len() % THEIRS.len()];
            bars.push(Bar { name: row.against.clone(), value: statistic.of(theirs), colour });
        }
    }
    bars.insert(0, Bar { name: "this library".to_owned(), value: statistic.of(&ours), colour: OURS });
    bars
}

impl Plot {
    pub fn draw(&self, rows: &[Row], directory: &Path) -> io::Result<()> {
        let groups = self.groups(rows);
        if groups.is_empty() {
            return Ok(());
        }
        let height: i32 = groups.iter().map(|group| BAR * group.bars.len() as i32 + BETWEEN_GROUPS).sum();
        let path = directory.join(self.file);
        let size = ((LABELS + BARS + VALUES) as u32, (TOP + height + 6) as u32);
        let area = SVGBackend::new(&path, size).into_drawing_area();
        self.draw_groups(&area, &groups).and_then(|()| Ok(area.present()?)).map_err(io::Error::other)
    }

    /// In the order of the tables, where one thing may have several rows.
    fn groups(&self, rows: &[Row]) -> Vec<Group> {
        let is_shown = |row: &&Row| {
            row.section == self.section
                && row.ratio().is_some()
                && !matches!(row.judge, Judge::Growth { .. })
                && self.begins.iter().any(|begin| row.what.starts_with(begin))
        };
        let shown: Vec<&Row> = rows.iter().filter(is_shown).collect();
        let mut groups: Vec<Group> = Vec::new();
        for row in &shown {
            if groups.iter().all(|group| group.name != row.what) {
                let bars = bars(shown.iter().filter(|other| other.what == row.what));
                groups.push(Group { name: row.what.clone(), bars });
            }
        }
        groups
    }

    /// How much of the room for bars a value takes.
    fn share(&self, value: f64, groups: &[Group]) -> f64 {
        let values = || groups.iter().flat_map(|group| &group.bars).map(|bar| bar.value);
        let most = values().fold(f64::MIN, f64::max);
        if !self.logarithmic {
            return value / most;
        }
        // The least value still has a bar to be seen.
        let least = values().fold(f64::MAX, f64::min) / 2.0;
        (value / least).ln() / (most / least).ln()
    }

    fn draw_groups(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        groups: &[Group],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        area.fill(&WHITE)?;
        let scale = if self.logarithmic { " (logarithmic)" } else { "" };
        let text = |size: i32| ("sans-serif", size).into_font().color(&BLACK);
        area.draw(&Text::new(format!("{}{scale}", self.title), (8, 12), text(21)))?;
        let mut y = TOP;
        for group in groups {
            area.draw(&Text::new(group.name.clone(), (8, y), text(16)))?;
            for bar in &group.bars {
                let end = LABELS + (self.share(bar.value, groups) * f64::from(BARS)) as i32;
                area.draw(&Rectangle::new(
                    [(LABELS, y), (end.max(LABELS + 1), y + BAR - 3)],
                    bar.colour.filled(),
                ))?;
                area.draw(&Text::new(format!("{}  {}", Short(bar.value), bar.name), (end + 4, y), text(15)))?;
                y += BAR;
            }
            y += BETWEEN_GROUPS;
        }
        Ok(())
    }
}
