//! The settings file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};

use super::TABLE;
use super::tokens::{self, TokenRule};

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct File {
    /// The values by key, as text.
    pub(super) values: BTreeMap<&'static str, String>,
    /// The `[[token]]` entries.
    pub(super) tokens: Vec<TokenRule>,
}

impl File {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        Self::parse(&text).with_context(|| format!("in {name}"))
    }

    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        // The parser's own rendering repeats the line, which may hold a password.
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
            anyhow::anyhow!("line {line}: {}", error.message())
        })?;
        let mut file = Self::default();
        file.take(table, "")?;
        Ok(file)
    }

    fn take(&mut self, table: toml::Table, prefix: &str) -> anyhow::Result<()> {
        for (name, value) in table {
            let key = format!("{prefix}{name}");
            match value {
                toml::Value::Array(entries) if key == "token" => {
                    self.tokens = tokens::parse(entries)?;
                }
                // `hapax proxy` reads this part, and knows which of its keys there are.
                toml::Value::Table(_) if key == "proxy" => {}
                toml::Value::Table(table) if is_table(&key) => {
                    self.take(table, &format!("{key}."))?;
                }
                value => {
                    let Some(setting) = TABLE.iter().find(|setting| setting.key == key) else {
                        let known: Vec<_> = TABLE.iter().map(|setting| setting.key).collect();
                        bail!("unknown key `{key}`; known are {}, [[token]]", known.join(", "));
                    };
                    self.values.insert(setting.key, text(&key, value)?);
                }
            }
        }
        Ok(())
    }
}

fn is_table(key: &str) -> bool {
    TABLE.iter().any(|setting| setting.key.strip_prefix(key).is_some_and(|k| k.starts_with('.')))
}

fn text(key: &str, value: toml::Value) -> anyhow::Result<String> {
    Ok(match value {
        toml::Value::String(text) => text,
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Boolean(flag) => flag.to_string(),
        toml::Value::Array(items) => {
            let items = items.into_iter().map(|item| text(key, item));
            items.collect::<anyhow::Result<Vec<_>>>()?.join(",")
        }
        _ => bail!("`{key}` has a value of the wrong type"),
    })
}
