//! One quantity over time, and whether it levels off.

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CurveKind {
    Memory,
    OpenFiles,
    StoreSize,
}

impl CurveKind {
    pub(super) const ALL: [Self; 3] = [Self::Memory, Self::OpenFiles, Self::StoreSize];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "resident memory",
            Self::OpenFiles => "open files",
            Self::StoreSize => "size of the data",
        }
    }

    /// A growth that is nobody's fault: allocators and databases take memory in large pieces.
    fn tolerated_growth(self) -> f64 {
        match self {
            Self::Memory => 24.0 * MIB,
            Self::OpenFiles => 40.0,
            Self::StoreSize => 16.0 * MIB,
        }
    }

    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::OpenFiles => format!("{value:.0}"),
            Self::Memory | Self::StoreSize => format!("{:.1} MiB", value / MIB),
        }
    }
}

const MIB: f64 = 1024.0 * 1024.0;
/// The part of the run that is warm-up.
const WARM_UP: f64 = 1.0 / 3.0;
/// The part of its middle value by which a curve may grow after that.
const TOLERATED_PART: f64 = 0.3;
/// The medians of so many spans make the slope, so that single peaks do not matter.
const SPANS: usize = 12;

/// The samples of one quantity of one process: seconds and value.
pub(super) struct Curve {
    pub(super) kind: CurveKind,
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

impl Curve {
    pub(super) fn new(kind: CurveKind, name: &str) -> Self {
        Self { kind, name: name.to_owned(), points: Vec::new() }
    }

    pub(super) fn last(&self) -> String {
        let last = self.points.last().map_or(0.0, |(_, value)| *value);
        format!("{} {}", self.name, self.kind.show(last))
    }

    /// The medians of equal spans after the warm-up.
    fn medians(&self) -> Vec<(f64, f64)> {
        let end = self.points.last().map_or(0.0, |(at, _)| *at);
        let first = self.points.partition_point(|(at, _)| *at < end * WARM_UP);
        let rest = &self.points[first..];
        let spans = rest.chunks(rest.len().div_ceil(SPANS).max(1));
        spans
            .map(|span| {
                (
                    median(span.iter().map(|(at, _)| *at)),
                    median(span.iter().map(|(_, value)| *value)),
                )
            })
            .collect()
    }

    /// The median of all slopes between two spans (Theil and Sen), for a second.
    fn slope(&self) -> f64 {
        let medians = self.medians();
        let mut slopes = Vec::new();
        for (number, (at, value)) in medians.iter().enumerate() {
            for (later, after) in &medians[number + 1..] {
                slopes.push((after - value) / (later - at).max(0.001));
            }
        }
        median(slopes.into_iter())
    }

    /// Whether it grew, over the time after the warm-up, by more than allocators and databases explain.
    pub(super) fn grows_without_bound(&self) -> bool {
        let medians = self.medians();
        let (Some(first), Some(last)) = (medians.first(), medians.last()) else { return false };
        let growth = self.slope() * (last.0 - first.0);
        let middle = median(medians.iter().map(|(_, value)| *value));
        growth > middle * TOLERATED_PART + self.kind.tolerated_growth()
    }

    /// A line of the table.
    pub(super) fn row(&self) -> String {
        let last = self.points.last().map_or(0.0, |(_, value)| *value);
        let largest = self.points.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let show = |value| self.kind.show(value);
        let verdict = if self.grows_without_bound() { "**grows**" } else { "level" };
        format!(
            "| {} | {} | {} | {} | {} | {verdict} |",
            self.name,
            self.kind.name(),
            show(last),
            show(largest),
            show(self.slope() * 3600.0)
        )
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Six hours of samples.
    fn curve(kind: CurveKind, value: impl Fn(f64) -> f64) -> Curve {
        let mut curve = Curve::new(kind, "serve-1");
        curve.points =
            (0..720).map(|sample| (f64::from(sample) * 30.0, value(f64::from(sample)))).collect();
        curve
    }

    #[test]
    fn soak_accepts_curves_that_level_off() {
        let warm = |sample: f64| 40.0 * MIB + 60.0 * MIB * (1.0 - (-sample / 40.0).exp());
        assert!(!curve(CurveKind::Memory, warm).grows_without_bound());
        // A saw, as of a log that is compacted.
        let saw = |sample: f64| 100.0 * MIB + (sample % 90.0) * MIB;
        assert!(!curve(CurveKind::StoreSize, saw).grows_without_bound());
        let peak = |sample: f64| if sample > 700.0 { 900.0 } else { 60.0 + sample % 7.0 };
        assert!(!curve(CurveKind::OpenFiles, peak).grows_without_bound());
    }

    #[test]
    fn soak_finds_curves_that_grow() {
        let leak = |sample: f64| 40.0 * MIB + sample * 0.2 * MIB;
        assert!(curve(CurveKind::Memory, leak).grows_without_bound());
        let noisy = |sample: f64| 30.0 + sample / 3.0 + (sample * 7.0) % 40.0;
        assert!(curve(CurveKind::OpenFiles, noisy).grows_without_bound());
        let unswept = |sample: f64| sample * MIB;
        assert!(curve(CurveKind::StoreSize, unswept).grows_without_bound());
    }
}
