//! The settings file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};

use super::{Section, Setting, TABLES};

/// What a file says.
#[derive(Default)]
pub(super) struct File<S> {
    /// The values by key, as text.
    pub(super) values: BTreeMap<&'static str, String>,
    /// What has no flag.
    pub(super) section: S,
}

impl<S: Section> File<S> {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        Self::parse(&text).with_context(|| format!("in {name}"))
    }

    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        // The parser's own rendering repeats the line, which may hold a password.
        let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
            anyhow::anyhow!("line {line}: {}", error.message())
        })?;
        let mut file = Self { section: S::take(&mut table)?, values: BTreeMap::new() };
        file.read(table, "")?;
        Ok(file)
    }

    fn read(&mut self, table: toml::Table, prefix: &str) -> anyhow::Result<()> {
        for (name, value) in table {
            let key = format!("{prefix}{name}");
            match value {
                toml::Value::Table(table) if is_table(S::TABLE, &key) => {
                    self.read(table, &format!("{key}."))?;
                }
                value => {
                    if let Some(setting) = S::TABLE.iter().find(|setting| setting.key == key) {
                        self.values.insert(setting.key, text(&key, value)?);
                    } else if !is_another_commands(&key, &value) {
                        let known: Vec<_> = S::TABLE.iter().map(|setting| setting.key).collect();
                        bail!("unknown key `{key}`; known are {}, {}", known.join(", "), S::KEYS);
                    }
                }
            }
        }
        Ok(())
    }
}

fn is_table(table: &[Setting], key: &str) -> bool {
    table.iter().any(|setting| setting.key.strip_prefix(key).is_some_and(|k| k.starts_with('.')))
}

/// One file may serve several commands: what another one knows is no mistake.
fn is_another_commands(key: &str, value: &toml::Value) -> bool {
    let known = |table: &[Setting]| {
        table.iter().any(|setting| setting.key == key) || value.is_table() && is_table(table, key)
    };
    key == "token" && value.is_array() || TABLES.iter().any(|table| known(table))
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
