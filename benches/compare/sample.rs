//! Measured values and what is told of them.

use std::fmt;

#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn append(&mut self, other: &Samples) {
        self.0.extend_from_slice(&other.0);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The value below which `share` of the values are; 0 without values.
    pub fn percentile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
    }

    pub fn median(&self) -> f64 {
        self.percentile(0.5)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Samples {
        Samples(values.into_iter().collect())
    }
}

/// What of the samples is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    Median,
    P99,
}

impl Statistic {
    pub fn of(self, samples: &Samples) -> f64 {
        match self {
            Statistic::Median => samples.median(),
            Statistic::P99 => samples.percentile(0.99),
        }
    }
}

/// `median (lower quartile..upper quartile)`, or the percentile alone.
pub struct Told<'a>(pub Statistic, pub &'a Samples);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Told(statistic, samples) = self;
        write!(f, "{}", Short(statistic.of(samples)))?;
        if *statistic == Statistic::Median && samples.len() > 1 {
            write!(f, " ({}..{})", Short(samples.percentile(0.25)), Short(samples.percentile(0.75)))?;
        }
        Ok(())
    }
}

/// Three digits that count.
pub struct Short(pub f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.0.abs() {
            size if size >= 100.0 => 0,
            size if size >= 10.0 => 1,
            size if size >= 0.1 || size == 0.0 => 2,
            _ => 4,
        };
        write!(f, "{:.digits$}", self.0)
    }
}
