use std::fmt;
use std::time::Duration;

/// A Markdown table with aligned columns: the first one to the left, the others to the right.
///
/// ```
/// use hapax_workload::MarkdownTable;
/// let mut table = MarkdownTable::default();
/// table.row([("workload", "lock".to_owned()), ("ops/s", "1200".to_owned())]);
/// assert_eq!(table.to_string(), "\
/// | workload | ops/s |
/// |----------|------:|
/// | lock     |  1200 |
/// ");
/// ```
#[derive(Clone, Debug, Default)]
pub struct MarkdownTable {
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl MarkdownTable {
    /// Adds a row of titles and cells. The first row gives the table its titles.
    pub fn row<'a>(&mut self, cells: impl IntoIterator<Item = (&'a str, String)>) {
        let (titles, cells): (Vec<_>, Vec<_>) = cells.into_iter().unzip();
        if self.titles.is_empty() {
            self.titles = titles.into_iter().map(str::to_owned).collect();
        }
        self.rows.push(cells);
    }

    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| &row[column]);
            cells.chain([&self.titles[column]]).map(|cell| cell.chars().count()).max()
        };
        (0..self.titles.len()).map(|column| width(column).unwrap_or(0).max(3)).collect()
    }
}

impl fmt::Display for MarkdownTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        write_row(f, &self.titles, &widths)?;
        for (column, width) in widths.iter().enumerate() {
            let (dashes, end) = if column == 0 { (width + 2, "") } else { (width + 1, ":") };
            write!(f, "|{}{end}", "-".repeat(dashes))?;
        }
        writeln!(f, "|")?;
        self.rows.iter().try_for_each(|row| write_row(f, row, &widths))
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, cells: &[String], widths: &[usize]) -> fmt::Result {
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        match column {
            0 => write!(f, "| {cell:<width$} ")?,
            _ => write!(f, "| {cell:>width$} ")?,
        }
    }
    writeln!(f, "|")
}

/// How numbers are written in the tables.
pub mod cell {
    use super::Duration;

    /// A rate, without digits that mean nothing: `48200`, `913`, `7.4`.
    pub fn rate(per_second: f64) -> String {
        if per_second >= 10_000.0 {
            format!("{:.0}", (per_second / 100.0).round() * 100.0)
        } else if per_second >= 100.0 {
            format!("{per_second:.0}")
        } else {
            format!("{per_second:.1}")
        }
    }

    /// A latency: `850 ns`, `12.3 µs`, `1.42 ms`, `2.10 s`.
    pub fn latency(time: Duration) -> String {
        let nanos = time.as_nanos() as f64;
        match nanos {
            n if n < 1e3 => format!("{n:.0} ns"),
            n if n < 1e6 => format!("{:.1} µs", n / 1e3),
            n if n < 1e9 => format!("{:.2} ms", n / 1e6),
            n => format!("{:.2} s", n / 1e9),
        }
    }

    /// CPU time in µs; `—` where it is not known.
    pub fn micros(time: Option<Duration>) -> String {
        time.map_or_else(|| "—".into(), |time| format!("{:.1}", time.as_secs_f64() * 1e6))
    }
}
