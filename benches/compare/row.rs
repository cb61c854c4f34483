//! One comparison, and whether it reaches what it should.

use std::fmt;

use serde_json::{Value, json};

use crate::sample::{Samples, Short, Statistic, Told};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    Ceilings,
    Rivals,
    Latency,
    Control,
    Scale,
}

/// How the ratio is formed, and what it should be.
#[derive(Clone, Copy, Debug)]
pub enum Judge {
    /// Ours over theirs, of what is good when it is much.
    More { at_least: Option<f64> },
    /// Theirs over ours, of what is good when it is little.
    Less { at_least: Option<f64> },
    /// Ours over theirs, of what should not grow.
    Growth { at_most: Option<f64> },
    /// No ratio: a limit in the unit of the row.
    Below(f64),
    /// No ratio and no limit.
    Told,
}

#[derive(Clone, Debug)]
pub struct Row {
    pub section: Section,
    pub what: String,
    pub unit: &'static str,
    pub statistic: Statistic,
    pub ours: Samples,
    pub against: String,
    /// `Err`: why it was not measured.
    pub theirs: Result<Samples, String>,
    pub judge: Judge,
    /// For who tunes: not in the document.
    pub aside: String,
}

impl Row {
    pub fn ratio(&self) -> Option<f64> {
        let theirs = self.theirs.as_ref().ok().filter(|theirs| theirs.len() > 0)?;
        let theirs = self.statistic.of(theirs);
        let ours = self.statistic.of(&self.ours);
        match self.judge {
            Judge::More { .. } | Judge::Growth { .. } => Some(ours / theirs),
            Judge::Less { .. } => Some(theirs / ours),
            Judge::Below(_) | Judge::Told => None,
        }
    }

    pub fn reach(&self) -> String {
        match self.judge {
            Judge::More { at_least: Some(reach) } | Judge::Less { at_least: Some(reach) } => {
                format!("≥ {reach}")
            }
            Judge::Growth { at_most: Some(reach) } => format!("≤ {reach}"),
            Judge::Below(limit) => format!("< {limit} {}", self.unit),
            _ => String::new(),
        }
    }

    /// `None`: there is nothing to reach, or it was not measured.
    pub fn is_met(&self) -> Option<bool> {
        match self.judge {
            Judge::More { at_least } | Judge::Less { at_least } => Some(self.ratio()? >= at_least?),
            Judge::Growth { at_most } => Some(self.ratio()? <= at_most?),
            Judge::Below(limit) => Some(self.statistic.of(&self.ours) < limit),
            Judge::Told => None,
        }
    }

    pub fn met_in_words(&self) -> &'static str {
        match self.is_met() {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "",
        }
    }

    pub fn ours_in_words(&self) -> String {
        self.in_words(&self.ours)
    }

    fn in_words(&self, samples: &Samples) -> String {
        if samples.len() == 0 {
            return String::new();
        }
        format!("{} {}", Told(self.statistic, samples), self.unit)
    }

    pub fn theirs_in_words(&self) -> String {
        match &self.theirs {
            Ok(theirs) => self.in_words(theirs),
            Err(why) => format!("not measured: {why}"),
        }
    }

    pub fn ratio_in_words(&self) -> String {
        self.ratio().map_or_else(String::new, |ratio| Short(ratio).to_string())
    }

    pub fn json(&self) -> Value {
        let told = |samples: &Samples| {
            let at = |share| samples.percentile(share);
            json!({"runs": samples.len(), "p25": at(0.25), "p50": at(0.5), "p75": at(0.75), "p99": at(0.99)})
        };
        json!({
            "what": self.what,
            "unit": self.unit,
            "ours": told(&self.ours),
            "against": self.against,
            "theirs": self.theirs.as_ref().map_or_else(|why| json!(why), told),
            "ratio": self.ratio(),
            "met": self.is_met(),
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:44} {:>28}   {:34} {:>30}   {:>5} {:7} {:3} {}",
            self.what,
            self.ours_in_words(),
            self.against,
            self.theirs_in_words(),
            self.ratio_in_words(),
            self.reach(),
            self.met_in_words().trim_matches('*'),
            self.aside,
        )
    }
}
