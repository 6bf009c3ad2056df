//! `--note` and `--where` of operators' actions.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};

use super::{CliError, ClientRequest};

#[derive(clap::Args)]
pub(crate) struct NoteArgs {
    /// Why, for the audit log: at most 500 bytes
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

impl NoteArgs {
    /// Adds the note to an action.
    pub(crate) fn add_to(&self, request: ClientRequest) -> ClientRequest {
        let encode = |note: &String| utf8_percent_encode(note, NON_ALPHANUMERIC).to_string();
        request.header("hapax-note", self.note.as_ref().map(encode))
    }
}

/// Parses `NAME=VALUE,NAME=VALUE` with these names, from one or more flags. A comma that no name follows
/// belongs to its value.
pub(crate) fn parse_where(
    filters: &[String],
    names: &[&str],
) -> Result<Map<String, Value>, CliError> {
    let mut parsed = Map::new();
    let mut last = None;
    let usage = || {
        let expected: Vec<_> = names.iter().map(|name| format!("{name}=…")).collect();
        CliError::Usage(format!("--where takes {}, separated by commas", expected.join(" or ")))
    };
    for (i, part) in filters.iter().flat_map(|text| text.split(',').enumerate()) {
        let pair = part.split_once('=').filter(|(name, _)| names.contains(&name.trim()));
        match (pair, &last) {
            (Some((name, value)), _) => {
                let name = name.trim().to_owned();
                if parsed.insert(name.clone(), value.into()).is_some() {
                    return Err(CliError::Usage(format!("--where has `{name}` twice")));
                }
                last = Some(name);
            }
            (None, Some(name)) if i > 0 => {
                let value = parsed.get(name).and_then(Value::as_str).unwrap_or_default();
                parsed.insert(name.clone(), format!("{value},{part}").into());
            }
            _ => return Err(usage()),
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(filters: &[&str]) -> Option<Value> {
        let filters: Vec<_> = filters.iter().map(|text| (*text).to_owned()).collect();
        parse_where(&filters, &["reason", "topic"]).ok().map(Value::Object)
    }

    #[test]
    fn where_filter_keeps_commas_of_values() {
        assert_eq!(parse(&[]), Some(json!({})));
        assert_eq!(parse(&["reason=a,b=c, d"]), Some(json!({"reason": "a,b=c, d"})));
        let both = Some(json!({"reason": "no, never", "topic": "orders"}));
        assert_eq!(parse(&["reason=no, never,topic=orders"]), both);
        assert_eq!(parse(&["reason=no, never", "topic=orders"]), both);
        for wrong in ["", "reason", "state=unknown", "orders", "topic=a,topic=b"] {
            assert_eq!(parse(&[wrong]), None, "{wrong}");
        }
    }
}
