use serde_json::Value;

/// The canonical text of a JSON value: members sorted by name, no white space, numbers as they were
/// written. Documents that differ only in member order or white space have the same text.
///
/// ```
/// use serde_json::json;
/// let one = hapax_core::canonical_json(&json!({"b": [1, 2.50], "a": {"d": null, "c": "x"}}));
/// assert_eq!(one, r#"{"a":{"c":"x","d":null},"b":[1,2.5]}"#);
/// ```
pub fn canonical_json(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| name.as_str());
            text.push('{');
            for (i, (name, value)) in members.into_iter().enumerate() {
                if i > 0 {
                    text.push(',');
                }
                write(&Value::String(name.clone()), text);
                text.push(':');
                write(value, text);
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    text.push(',');
                }
                write(item, text);
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}
