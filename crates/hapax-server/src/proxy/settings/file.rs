//! The settings file, as far as the proxy is concerned: `[proxy]`, and what it shares with the
//! other commands.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use hapax_core::OnUnknown;
use hapax_core::lock::OnStoreError;
use hapax_http::{FingerprintOf, Scope, Verdict};
use serde::Deserialize;

use super::super::target::Target;
use super::TABLE;
use super::value::{Methods, Size, Text, Value};

type Time = Text<std::time::Duration>;

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct File {
    /// The values by key, as text.
    pub(super) values: BTreeMap<&'static str, String>,
    /// What has no flag.
    pub(super) section: Section,
}

/// What only the file can say.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Section {
    pub(super) fingerprint: Option<FingerprintSection>,
    pub(super) statuses: Statuses,
    pub(super) route: Vec<RouteSection>,
}

/// `[[proxy.route]]`: what it does not say is as for the whole proxy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouteSection {
    pub(super) path: String,
    pub(super) upstream: Option<Text<Target>>,
    pub(super) methods: Option<Vec<String>>,
    pub(super) scope: Option<Text<Scope>>,
    pub(super) wait: Option<Time>,
    pub(super) lease: Option<Time>,
    pub(super) retention: Option<Time>,
    pub(super) require_key: Option<bool>,
    pub(super) on_unknown: Option<Text<OnUnknown>>,
    pub(super) on_store_error: Option<Text<OnStoreError>>,
    pub(super) limit: Option<Text<Size>>,
    pub(super) upstream_timeout: Option<Time>,
    pub(super) fingerprint: Option<FingerprintSection>,
    #[serde(default)]
    pub(super) statuses: Statuses,
}

/// Single statuses: `{ 404 = "give-back" }`.
pub(super) type Statuses = BTreeMap<String, Text<Verdict>>;

impl RouteSection {
    pub(super) fn methods(&self) -> anyhow::Result<Option<Methods>> {
        let Some(names) = &self.methods else { return Ok(None) };
        Methods::parse(&names.join(",")).map(Some).map_err(|e| anyhow::anyhow!("`methods`: {e}"))
    }
}

/// `"bytes"`, `"json"`, `{ only = […] }` or `{ except = […] }`.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "`fingerprint` takes \"bytes\", \"json\", { only = [\"/pointer\"] } or { except = [\"/pointer\"] }"
)]
pub(super) enum FingerprintSection {
    Whole(Whole),
    Only(Only),
    Except(Except),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Whole {
    Bytes,
    Json,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Only {
    only: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Except {
    except: Vec<String>,
}

impl FingerprintSection {
    pub(super) fn read(&self) -> anyhow::Result<FingerprintOf> {
        let pointers =
            |pointers: &Vec<String>| match pointers.iter().all(|pointer| pointer.starts_with('/'))
                && !pointers.is_empty()
            {
                true => Ok(pointers.clone()),
                false => bail!("`fingerprint`: JSON pointers such as \"/order/id\" are expected"),
            };
        Ok(match self {
            Self::Whole(Whole::Bytes) => FingerprintOf::Bytes,
            Self::Whole(Whole::Json) => FingerprintOf::Json,
            Self::Only(only) => FingerprintOf::Only(pointers(&only.only)?),
            Self::Except(except) => FingerprintOf::Except(pointers(&except.except)?),
        })
    }
}

impl File {
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
        let mut proxy = match table.remove("proxy") {
            None => toml::Table::new(),
            Some(toml::Value::Table(proxy)) => proxy,
            Some(_) => bail!("`proxy` takes a table, as in [proxy]"),
        };
        let mut file = Self::default();
        let mut section = toml::Table::new();
        for name in ["fingerprint", "statuses", "route"] {
            section.extend(proxy.remove(name).map(|value| (name.to_owned(), value)));
        }
        file.section = section.try_into().map_err(|e: toml::de::Error| wrong(&e))?;
        for (name, value) in proxy {
            file.take(&format!("proxy.{name}"), value)?;
        }
        for (name, value) in table {
            if !is_another_commands(&name, &value) {
                file.take(&name, value)?;
            }
        }
        Ok(file)
    }

    fn take(&mut self, key: &str, value: toml::Value) -> anyhow::Result<()> {
        let Some(setting) = TABLE.iter().find(|setting| setting.key == key) else {
            let known: Vec<_> = TABLE.iter().map(|setting| setting.key).collect();
            bail!(
                "unknown key `{key}`; known are {}, proxy.fingerprint, proxy.statuses, [[proxy.route]]",
                known.join(", ")
            );
        };
        self.values.insert(setting.key, text(key, value)?);
        Ok(())
    }
}

fn wrong(error: &toml::de::Error) -> anyhow::Error {
    anyhow::anyhow!("[proxy]: {}", error.message())
}

/// One file may serve several commands: what `hapax serve` knows is no mistake here.
fn is_another_commands(key: &str, value: &toml::Value) -> bool {
    let under = |setting: &str| setting == key || setting.starts_with(&format!("{key}."));
    let ours = TABLE.iter().any(|setting| setting.key == key);
    let tables = value.is_table() || value.is_array();
    !ours
        && (key == "token" && tables
            || crate::settings::TABLE.iter().any(|setting| under(setting.key)))
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
