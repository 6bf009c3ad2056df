//! Reads the Markdown tables that the comparisons print.

/// A table, with the headings that stand above it.
#[derive(Debug, PartialEq)]
pub(super) struct PrintedTable {
    /// Headings from the outermost to the innermost, without versions and explanations.
    pub(super) headings: Vec<String>,
    pub(super) titles: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl PrintedTable {
    /// The cell of a row in the column of this title.
    pub(super) fn cell<'a>(&self, row: &'a [String], title: &str) -> Option<&'a str> {
        let column = self.titles.iter().position(|own| own == title)?;
        row.get(column).map(String::as_str)
    }
}

/// All tables of a text.
pub(super) fn printed_tables(text: &str) -> Vec<PrintedTable> {
    let mut headings: Vec<(usize, String)> = Vec::new();
    let mut tables: Vec<PrintedTable> = Vec::new();
    let mut inside_table = false;
    for line in text.lines() {
        if let Some(cells) = cells(line) {
            if !inside_table {
                let headings = headings.iter().map(|(_, text)| text.clone()).collect();
                tables.push(PrintedTable { headings, titles: cells, rows: Vec::new() });
            } else if let Some(table) = tables.last_mut().filter(|_| !is_separator(&cells)) {
                table.rows.push(cells);
            }
            inside_table = true;
            continue;
        }
        inside_table = false;
        let level = line.chars().take_while(|c| *c == '#').count();
        if level > 0 && line[level..].starts_with(' ') {
            headings.retain(|(above, _)| *above < level);
            headings.push((level, subject(&line[level..])));
        }
    }
    tables
}

/// The cells of a line of a table.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(|cell| cell.trim().to_owned()).collect())
}

fn is_separator(cells: &[String]) -> bool {
    cells.iter().all(|cell| !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':')))
}

/// The heading without what follows its subject: `PostgreSQL 15.18 (fsync …)` is `PostgreSQL`, so that an
/// upgraded engine keeps its recorded lines.
fn subject(heading: &str) -> String {
    let end = heading.find(|c: char| c.is_ascii_digit() || matches!(c, '(' | ';' | ':' | ','));
    heading[..end.unwrap_or(heading.len())].trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_tables_have_the_headings_above_them() {
        let text = "2 cores\n\n## Enqueueing\n\nText.\n\n### SQLite 3.54.1 (WAL)\n\n\
                    | transaction | tasks |\n|---|---:|\n| with a row | 1 |\n| other | 64 |\n\n\
                    ### PostgreSQL 15 (x)\n| transaction | tasks |\n|---|---:|\n| a | 1 |\n\
                    \n## Draining\n\n| store |\n|---|\n";
        let tables = printed_tables(text);
        let headings: Vec<_> = tables.iter().map(|table| table.headings.join("/")).collect();
        assert_eq!(headings, ["Enqueueing/SQLite", "Enqueueing/PostgreSQL", "Draining"]);
        assert_eq!(tables[0].rows, [["with a row", "1"], ["other", "64"]]);
        assert_eq!(tables[0].cell(&tables[0].rows[1], "tasks"), Some("64"));
        assert_eq!(tables[0].cell(&tables[0].rows[1], "p50"), None);
        assert_eq!((tables[1].rows.len(), tables[2].rows.len()), (1, 0));
    }
}
