//! Writing to the terminal without panicking where nobody reads.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use serde_json::{Map, Value};

use super::{Answer, Failure};

/// A line on standard output.
pub(crate) fn line(text: impl Display) {
    // Whoever closed the pipe wants no more of it.
    let _ = writeln!(anstream::stdout(), "{text}");
}

/// Bytes on standard output as they are, and the end of the line where they have none.
pub(crate) fn print(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(bytes);
    if !bytes.is_empty() && !bytes.ends_with(b"\n") {
        let _ = out.write_all(b"\n");
    }
    let _ = out.flush();
}

/// A line on standard error.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// What the server answered: its JSON as it is, or a line for each of its fields.
pub(crate) fn show(answer: &Answer, json: bool) -> Result<(), Failure> {
    if json {
        print(&answer.body);
    } else {
        line(fields(&answer.read()?).trim_end());
    }
    Ok(())
}

/// Names and values, the values below each other; a body comes last and as it is.
fn fields(object: &Map<String, Value>) -> String {
    // The answer of a command is shown as if it were the command's own.
    let inner = object.get("response").and_then(Value::as_object);
    let (bodies, fields): (Vec<_>, Vec<_>) = object
        .iter()
        .filter(|(name, _)| inner.is_none() || *name != "response")
        .chain(inner.into_iter().flatten())
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| field(name, value))
        .partition(|(name, _)| name.starts_with("body"));
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let fields = fields.into_iter().map(|(name, value)| format!("{name:<width$}  {value}\n"));
    let bodies = bodies.into_iter().map(|(_, value)| format!("\n{value}\n"));
    fields.chain(bodies).collect()
}

/// The access token is called token here, so the proof of a claim is its ticket, as in the
/// documentation; times are for people.
fn field(name: &str, value: &Value) -> (String, String) {
    let name = if name == "token" { "ticket" } else { name };
    match (name.contains("_ms"), value) {
        (true, Value::Number(ms)) => {
            let time = Duration::from_millis(ms.as_u64().unwrap_or_default());
            (name.replace("_ms", ""), humantime::format_duration(time).to_string())
        }
        (_, Value::String(text)) => (name.into(), text.clone()),
        (_, other) => (name.into(), other.to_string()),
    }
}

/// Rows whose cells stand below each other; the last one is as long as it is.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_below_each_other() {
        let rows = [["state", "key"], ["unknown", "k"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(columns(&rows), "state    key\nunknown  k");
    }

    #[test]
    fn an_answer_is_shown_as_a_line_for_each_field() {
        let json =
            r#"{"state":"pending","token":"abc","ttl_ms":1500,"fence":7,"x":null,"body":"hi"}"#;
        let shown = fields(&serde_json::from_str(json).unwrap());
        assert_eq!(shown, "state   pending\nticket  abc\nttl     1s 500ms\nfence   7\n\nhi\n");
        let json = r#"{"begun_ms_ago":20,"response":{"status":201,"body":"hi"}}"#;
        let shown = fields(&serde_json::from_str(json).unwrap());
        assert_eq!(shown, "begun_ago  20ms\nstatus     201\n\nhi\n");
    }
}
