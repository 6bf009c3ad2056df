//! How much memory parsing JSON takes.

/// The memory of one parsed value with its share of the containers around it, at most. Lists grow by
/// doubling, and the old and the new one exist at once.
const VALUE: usize = 256;
/// Parsing a body below this cost needs no reservation.
const SMALL: usize = 64 * 1024;

/// An upper bound of the memory that parsing this JSON into a tree, and writing it as canonical text,
/// takes at once; 0 where that is too little to matter. Counts values by their separators, in one
/// pass, and never fails: a text that is not JSON is not parsed far.
///
/// ```
/// use hapax_http::json_cost;
/// assert_eq!(json_cost(br#"{"item":"tea"}"#), 0);
/// let zeros = format!("[{}0]", "0,".repeat(500_000));
/// assert!(json_cost(zeros.as_bytes()) > 80 << 20);
/// ```
pub fn json_cost(body: &[u8]) -> usize {
    let (mut values, mut in_string, mut escaped) = (1, false, false);
    for &byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' | b':' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    let cost = body.len().saturating_mul(5).saturating_add(VALUE.saturating_mul(values));
    if cost < SMALL { 0 } else { cost }
}
