use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How many buckets an octave has, as a power of two: a bucket is at most an eighth wide.
const SUB_BITS: u32 = 3;
const SUBS: u64 = 1 << SUB_BITS;
/// The highest octave: the last bucket begins at 125 s and has no end.
const MAX_EXPONENT: u32 = 26;
/// The number of buckets.
pub(super) const BUCKETS: usize = ((MAX_EXPONENT - SUB_BITS + 2) as usize) << SUB_BITS;

/// How often latencies fell into logarithmic buckets of whole microseconds, each at most an eighth wide. Its JSON is
/// `[[bucket, count], …]`, without empty buckets.
///
/// Bucket `b` below 8 is `b` µs. Above, with `e = b / 8 + 2` and `s = b % 8`, it begins at `(8 + s) · 2^(e − 3)` µs.
///
/// ```
/// use hapax_core::activity::LatencyHistogram;
/// use std::time::Duration;
/// let mut latencies = LatencyHistogram::default();
/// (1..=100).for_each(|ms| latencies.record(Duration::from_millis(ms)));
/// let p95 = latencies.percentile(95.0).unwrap();
/// assert!(p95 >= Duration::from_millis(95) && p95 <= Duration::from_millis(107), "{p95:?}");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyHistogram(BTreeMap<u16, u64>);

impl LatencyHistogram {
    /// Counts one latency.
    pub fn record(&mut self, took: Duration) {
        self.add(bucket_of(took), 1);
    }

    pub(super) fn add(&mut self, bucket: u16, count: u64) {
        *self.0.entry(bucket).or_default() += count;
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(bucket, count)| self.add(*bucket, *count));
    }

    /// How many latencies were counted.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// The latency that so many percent did not exceed, rounded up to the end of its bucket; `None` where nothing was counted.
    pub fn percentile(&self, percent: f64) -> Option<Duration> {
        let rank = (self.count() as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reaches = |(_, count): &(&u16, &u64)| {
            seen += **count;
            seen >= rank
        };
        self.0.iter().find(reaches).map(|(bucket, _)| end_of(*bucket))
    }
}

impl Serialize for LatencyHistogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.0)
    }
}

impl<'de> Deserialize<'de> for LatencyHistogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let counts = Vec::<(u16, u64)>::deserialize(deserializer)?;
        let mut histogram = Self::default();
        let known = |bucket: &u16| usize::from(*bucket) < BUCKETS;
        counts.into_iter().filter(|(b, _)| known(b)).for_each(|(b, count)| histogram.add(b, count));
        Ok(histogram)
    }
}

/// The bucket of a latency.
pub(super) fn bucket_of(took: Duration) -> u16 {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    if micros < SUBS {
        return micros as u16;
    }
    let exponent = micros.ilog2();
    if exponent > MAX_EXPONENT {
        return BUCKETS as u16 - 1;
    }
    let sub = (micros >> (exponent - SUB_BITS)) & (SUBS - 1);
    (u64::from(exponent - SUB_BITS + 1) * SUBS + sub) as u16
}

/// The end of a bucket, which is the beginning of the next one.
fn end_of(bucket: u16) -> Duration {
    let next = u64::from(bucket) + 1;
    if next < SUBS {
        return Duration::from_micros(next);
    }
    let shift = next / SUBS - 1;
    Duration::from_micros((SUBS + next % SUBS) << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets_grow_and_are_at_most_an_eighth_wide() {
        let mut begin = Duration::ZERO;
        for bucket in 0..BUCKETS as u16 {
            let end = end_of(bucket);
            assert!(end > begin, "{bucket}");
            assert_eq!(bucket_of(begin), bucket);
            assert_eq!(bucket_of(end - Duration::from_micros(1)), bucket);
            assert!(bucket < 8 || end.as_micros() * 8 <= begin.as_micros() * 9, "{bucket}");
            begin = end;
        }
        assert_eq!(usize::from(bucket_of(Duration::MAX)), BUCKETS - 1);
    }

    #[test]
    fn histogram_percentiles_follow_the_counts() {
        let mut latencies = LatencyHistogram::default();
        assert_eq!(latencies.percentile(50.0), None);
        (0..98).for_each(|_| latencies.record(Duration::from_micros(3)));
        latencies.record(Duration::from_millis(5));
        latencies.record(Duration::from_secs(3));
        assert_eq!(latencies.percentile(50.0), Some(Duration::from_micros(4)));
        let p99 = latencies.percentile(99.0).unwrap();
        assert!(p99 > Duration::from_millis(5) && p99 < Duration::from_micros(5700), "{p99:?}");
        assert!(latencies.percentile(100.0).unwrap() > Duration::from_secs(3));
        let json = serde_json::to_string(&latencies).unwrap();
        assert!(json.starts_with("[[3,98],["), "{json}");
        assert_eq!(serde_json::from_str::<LatencyHistogram>(&json).unwrap(), latencies);
    }
}
