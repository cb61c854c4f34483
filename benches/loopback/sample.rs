//! Measured values and what is told of them.

#[derive(Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn new() -> Samples {
        Samples::default()
    }

    pub fn push(&mut self, value: f64) {
        self.0.push(value);
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

    pub fn min(&self) -> f64 {
        self.percentile(0.0)
    }

    pub fn quartiles(&self) -> [f64; 3] {
        [0.25, 0.5, 0.75].map(|share| self.percentile(share))
    }
}
