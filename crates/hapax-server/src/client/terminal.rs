//! Values from the command line, a file or standard input, and writing to the terminal.

use std::fmt::Display;
use std::io::{Read, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Backend, CliError, ClientRequest, ClientResponse};

pub(crate) fn print_line(text: impl Display) {
    // Ignore a closed pipe: its reader wants no more.
    let _ = writeln!(anstream::stdout(), "{text}");
}

/// Prints bytes to standard output, and a line feed where they do not end with one.
pub(crate) fn print_bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(bytes);
    if !bytes.is_empty() && !bytes.ends_with(b"\n") {
        let _ = out.write_all(b"\n");
    }
    let _ = out.flush();
}

pub(crate) fn print_note(text: impl Display) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// A progress bar on standard error, which is drawn only on a terminal; a spinner without a length.
pub(crate) fn progress_bar(length: Option<u64>, template: &str) -> ProgressBar {
    let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Prints a response, if it has a body: its JSON as it is, or a line for each field.
pub(crate) fn print_response(response: &ClientResponse, json: bool) -> Result<(), CliError> {
    if json || response.body.is_empty() {
        print_bytes(&response.body);
    } else {
        print_line(fields(&response.read()?).trim_end());
    }
    Ok(())
}

/// The names and values in two columns; a body comes last, unchanged.
fn fields(object: &Map<String, Value>) -> String {
    // The fields of a command's response are shown among the command's own.
    let inner = object.get("response").and_then(Value::as_object);
    let (bodies, fields): (Vec<_>, Vec<_>) = object
        .iter()
        .filter(|(name, _)| inner.is_none() || *name != "response")
        .chain(inner.into_iter().flatten())
        .filter(|(name, value)| !value.is_null() && (*name != "masked" || **value != false))
        .map(|(name, value)| field(name, value))
        .partition(|(name, _)| name.starts_with("body"));
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let fields = fields.into_iter().map(|(name, value)| format!("{name:<width$}  {value}\n"));
    let bodies = bodies.into_iter().map(|(_, value)| format!("\n{value}\n"));
    fields.chain(bodies).collect()
}

/// The name and the value of a field. The command line calls the token of a claim a ticket, because
/// `--token` is the access token; times are written for people.
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

/// The arguments of a list in pages.
#[derive(clap::Args)]
pub(crate) struct PageArgs {
    /// The approximate size of a page, 1 to 1000 [default: 100; with --all 1000]
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u64>,
    /// Continue after an earlier page: its `next`
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Every page; with --json a line for each
    #[arg(long)]
    all: bool,
}

pub(crate) trait ListPage: DeserializeOwned {
    const HEAD: &'static [&'static str];

    /// The cells of each row, and the cursor of the next page.
    fn into_rows(self) -> (Vec<Vec<String>>, Option<String>);
}

impl PageArgs {
    /// Prints the pages of a list: their JSON as it is, or a table.
    pub(crate) async fn print<P: ListPage>(
        self,
        backend: &Backend,
        request: impl Fn() -> ClientRequest,
        json: bool,
    ) -> Result<(), CliError> {
        let limit = self.limit.or(self.all.then_some(1000));
        let mut after = self.after;
        let mut head = Some(P::HEAD.iter().map(|title| (*title).to_owned()).collect());
        loop {
            let request = request().query("limit", limit).query("after", after);
            let response = backend.send(request).await?;
            let (rows, next) = response.read::<P>()?.into_rows();
            if json {
                print_bytes(&response.body);
            } else if !rows.is_empty() {
                print_line(columns(&head.take().into_iter().chain(rows).collect::<Vec<_>>()));
            }
            match next {
                Some(next) if self.all => after = Some(next),
                Some(_) if !json => {
                    print_note("there may be more: --all shows them, --limit more at once");
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
    }
}

/// A key in a table; the server hides it from callers that may not see it.
pub(crate) fn shown_key(key: Option<String>) -> String {
    key.unwrap_or_else(|| "(masked)".into())
}

/// Aligns the cells of rows in columns; the last column is not padded.
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

/// More than any server takes; the server reports its own limit.
const MAX_INPUT: u64 = 64 << 20;

/// Reads an argument: `@FILE`, standard input (`-` or nothing), or the value itself.
pub(crate) fn read_value(argument: Option<&str>) -> Result<Vec<u8>, CliError> {
    match argument {
        None | Some("-") => read(std::io::stdin().lock(), "standard input"),
        Some(text) => match text.strip_prefix('@') {
            Some(path) => {
                let file = std::fs::File::open(path)
                    .map_err(|error| CliError::Local(format!("{path}: {error}")))?;
                read(file, path)
            }
            None => Ok(text.as_bytes().to_vec()),
        },
    }
}

fn read(source: impl Read, name: &str) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    let read = source.take(MAX_INPUT + 1).read_to_end(&mut bytes);
    match read {
        Err(error) => Err(CliError::Local(format!("{name}: {error}"))),
        Ok(length) if length as u64 > MAX_INPUT => {
            Err(CliError::Local(format!("{name}: larger than {} MiB", MAX_INPUT >> 20)))
        }
        Ok(_) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [["state", "key"], ["unknown", "k"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(columns(&rows), "state    key\nunknown  k");
    }

    #[test]
    fn response_is_printed_as_a_line_for_each_field() {
        let json =
            r#"{"state":"pending","token":"abc","ttl_ms":1500,"fence":7,"x":null,"body":"hi"}"#;
        let shown = fields(&serde_json::from_str(json).unwrap());
        assert_eq!(shown, "state   pending\nticket  abc\nttl     1s 500ms\nfence   7\n\nhi\n");
        let json = r#"{"begun_ms_ago":20,"response":{"status":201,"body":"hi"}}"#;
        let shown = fields(&serde_json::from_str(json).unwrap());
        assert_eq!(shown, "begun_ago  20ms\nstatus     201\n\nhi\n");
    }
}
