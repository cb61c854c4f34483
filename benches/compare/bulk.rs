//! Whole shapes: every way beside what limits it, and beside its rivals.

use std::time::Duration;

use crate::bare::Ceiling;
use crate::bare::nixl::{Pair, Settings, Variant};
use crate::race::{Bounds, Opponent, Ours, Race};
use crate::rival::{Pace, Rivals};
use crate::row::{Judge, Row, Section};
use crate::sample::{Samples, Short, Statistic};
use crate::shape::{Shape, Way};

const KIB: usize = 1 << 10;
pub const SHAPES: [(usize, usize); 3] = [(16 * KIB, 1024), (64 * KIB, 1024), (1024 * KIB, 512)];

/// Where a region's pages happen to lie in memory makes up to a fifth of its speed, from the first run to the last. So
/// where the ratio is close to 1, everything starts anew several times, each side being the first to take memory in half
/// of them.
const CEILING_STARTS: usize = 4;
const CEILING: Bounds = Bounds { runs: 9, limit: Duration::from_millis(1500), least_runs: 3 };
const RIVAL: Bounds = Bounds { runs: 15, limit: Duration::from_secs(3), least_runs: 3 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    Bare,
    Memcpy,
    BareNixl,
    NixlDefaults,
    NixlOverTcp,
    Mooncake,
    Vllm(Pace),
}

impl Against {
    pub fn of(way: Way) -> &'static [Against] {
        match way {
            Way::Mapped => &[
                Against::Bare,
                Against::Memcpy,
                Against::NixlDefaults,
                Against::Vllm(Pace::Busy),
                Against::Vllm(Pace::Paced),
            ],
            Way::VmRead | Way::Tcp { streams: 2.. } => &[Against::Bare],
            Way::Tcp { .. } => &[Against::Bare, Against::Mooncake, Against::NixlOverTcp],
            Way::Nixl => &[Against::BareNixl, Against::NixlDefaults],
        }
    }

    pub fn section(self) -> Section {
        match self {
            Against::Bare | Against::Memcpy | Against::BareNixl => Section::Ceilings,
            _ => Section::Rivals,
        }
    }

    fn name(self, way: Way) -> String {
        match self {
            Against::Bare => match way {
                Way::Mapped => "bare mapping, non-temporal stores".to_owned(),
                Way::VmRead => "bare process_vm_readv".to_owned(),
                Way::Tcp { streams } => format!("bare scatter/gather, streams: {streams}"),
                Way::Nixl => String::new(),
            },
            Against::Memcpy => "memcpy inside one process".to_owned(),
            Against::BareNixl => "bare NIXL, no progress thread".to_owned(),
            Against::NixlDefaults => "bare NIXL, its defaults".to_owned(),
            Against::NixlOverTcp => "bare NIXL over TCP, its defaults".to_owned(),
            Against::Mooncake => "Mooncake over TCP".to_owned(),
            Against::Vllm(pace) => format!("vLLM's tier, {}", pace.name()),
        }
    }

    fn at_least(self, way: Way, shape: Shape) -> Option<f64> {
        match self {
            Against::Bare if way == Way::Mapped && shape.block_len >= 64 * KIB => Some(0.95),
            Against::Bare => Some(0.9),
            Against::Memcpy => None,
            Against::BareNixl => Some(0.95),
            Against::NixlDefaults if way == Way::Nixl => Some(1.3),
            Against::NixlDefaults => Some(3.0),
            Against::NixlOverTcp | Against::Mooncake => Some(2.0),
            Against::Vllm(_) => Some(4.0),
        }
    }

    fn start(self, shape: Shape, rivals: &Rivals) -> Result<Box<dyn Opponent>, String> {
        let nixl = |settings, over_tcp| {
            let pair = Pair::start(shape, Variant { settings, over_tcp }, &rivals.nixl()?)?;
            Ok::<Box<dyn Opponent>, String>(Box::new(pair))
        };
        Ok(match self {
            Against::Bare => Box::new(Ceiling::new(shape)),
            Against::Memcpy => Box::new(Ceiling::memcpy(shape)),
            Against::BareNixl => nixl(Settings::NoThread, false)?,
            Against::NixlDefaults => nixl(Settings::Default, false)?,
            Against::NixlOverTcp => nixl(Settings::Default, true)?,
            Against::Mooncake => Box::new(rivals.mooncake(shape)?),
            Against::Vllm(pace) => Box::new(rivals.vllm(pace, false, shape.block_len, shape.blocks)?),
        })
    }
}

/// The library's own name for a way.
pub fn ours_by(way: Way) -> String {
    match way {
        Way::Mapped => "same host, mapped".to_owned(),
        Way::VmRead => "same host, process_vm_readv".to_owned(),
        Way::Tcp { streams } => format!("tcp, streams: {streams}"),
        Way::Nixl => "nixl".to_owned(),
    }
}

/// One row after the other, as it is measured.
pub fn measure(way: Way, chosen: &[Against], rivals: &Rivals, tell: &mut impl FnMut(Row)) {
    for (block_len, blocks) in SHAPES {
        let shape = Shape { block_len, blocks, way };
        chosen.iter().for_each(|against| tell(row(shape, *against, rivals)));
    }
}

fn race(shape: Shape, against: Against, rivals: &Rivals) -> Result<Race, String> {
    if against.section() != Section::Ceilings {
        let mut ours = Ours::start(shape);
        return ours.against(&mut *against.start(shape, rivals)?, RIVAL);
    }
    let mut race = Race::default();
    for start in 0..CEILING_STARTS {
        let first = if start % 2 == 1 { Some(against.start(shape, rivals)?) } else { None };
        let mut ours = Ours::start(shape);
        let mut opponent = match first {
            Some(opponent) => opponent,
            None => against.start(shape, rivals)?,
        };
        race.append(&ours.against(&mut *opponent, CEILING)?);
    }
    Ok(race)
}

/// In place of rows that need NIXL here, where it is not.
pub fn without_nixl(why: String) -> Row {
    Row {
        section: Section::Ceilings,
        what: ours_by(Way::Nixl),
        unit: "GB/s",
        statistic: Statistic::Median,
        ours: Samples::default(),
        against: Against::BareNixl.name(Way::Nixl),
        theirs: Err(why),
        judge: Judge::Told,
        aside: String::new(),
    }
}

fn row(shape: Shape, against: Against, rivals: &Rivals) -> Row {
    let (our_speed, theirs, aside) = match race(shape, against, rivals) {
        Ok(race) => {
            let [ours, bare] = [&race.our_cpu, &race.their_cpu].map(|cpu| Short(cpu.median()));
            (race.ours, Ok(race.theirs), format!("CPU s/GB: {ours}, bare {bare}"))
        }
        Err(why) => (Samples::default(), Err(why), String::new()),
    };
    // Of others, that is not all of their CPU time.
    let has_all_cpu = matches!(against, Against::Bare | Against::Memcpy);
    Row {
        section: against.section(),
        what: format!("{}, {shape}", ours_by(shape.way)),
        unit: "GB/s",
        statistic: Statistic::Median,
        ours: our_speed,
        against: against.name(shape.way),
        theirs,
        judge: Judge::More { at_least: against.at_least(shape.way, shape) },
        aside: if has_all_cpu { aside } else { String::new() },
    }
}
