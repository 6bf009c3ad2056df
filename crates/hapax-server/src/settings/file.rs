//! The settings file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};

use super::declare::{CommandSettings, FileOnly, Setting};
use super::tables;

/// The values of a settings file.
pub(super) struct SettingsFile<S: CommandSettings> {
    /// The key and the text of each setting, by its flag.
    pub(super) values: BTreeMap<&'static str, (String, String)>,
    pub(super) file_only: S::FileOnly,
}

impl<S: CommandSettings> Default for SettingsFile<S> {
    fn default() -> Self {
        Self { values: BTreeMap::new(), file_only: S::FileOnly::default() }
    }
}

impl<S: CommandSettings> SettingsFile<S> {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        Self::parse(&text).with_context(|| format!("in {name}"))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        // The parser's own message repeats the line, which may hold a password.
        let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
            anyhow::anyhow!("line {line}: {}", error.message())
        })?;
        let mut file = Self { file_only: S::FileOnly::take(&mut table)?, values: BTreeMap::new() };
        file.read(table, "")?;
        Ok(file)
    }

    fn read(&mut self, table: toml::Table, prefix: &str) -> anyhow::Result<()> {
        for (name, value) in table {
            let key = format!("{prefix}{name}");
            match value {
                toml::Value::Table(table) if is_table(S::table(), &key) => {
                    self.read(table, &format!("{key}."))?;
                }
                value => self.read_value(key, value)?,
            }
        }
        Ok(())
    }

    fn read_value(&mut self, key: String, value: toml::Value) -> anyhow::Result<()> {
        if let Some(setting) = S::table().iter().find(|setting| setting.has_key(&key)) {
            let text = text(&key, value)?;
            if let Some((other, _)) = self.values.get(&*setting.names.flag) {
                bail!("`{other}` and `{key}` are names of the same setting; only one can be used");
            }
            self.values.insert(&setting.names.flag, (key, text));
        } else if !belongs_to_another_command(&key, &value) {
            let known: Vec<_> = S::table().iter().map(|setting| &*setting.names.key).collect();
            bail!("unknown key `{key}`; known are {}, {}", known.join(", "), S::FileOnly::KEYS);
        }
        Ok(())
    }
}

fn is_table(settings: &[Setting], table: &str) -> bool {
    let begins = |key: &str| key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.'));
    settings.iter().any(|setting| begins(&setting.names.key))
}

/// Whether another command knows the key: one file may serve several commands.
fn belongs_to_another_command(key: &str, value: &toml::Value) -> bool {
    let known = |settings: &[Setting]| {
        settings.iter().any(|setting| setting.has_key(key))
            || value.is_table() && is_table(settings, key)
    };
    key == "token" && value.is_array() || tables().into_iter().any(known)
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
