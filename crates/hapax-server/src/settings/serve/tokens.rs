//! `[[token]]`: the tokens that may call, their tenants and scopes.

use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use hapax::Tenant;
use serde::Deserialize;

/// An accepted token, known by its hash alone.
#[derive(Clone, Debug)]
pub(crate) struct TokenRule {
    /// The name of its holder, for the audit log.
    pub(crate) name: Arc<str>,
    pub(crate) sha256: [u8; 32],
    /// The tenant whose data its calls see.
    pub(crate) tenant: Tenant,
    pub(crate) scopes: Vec<TokenScope>,
}

/// A kind of call that a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TokenScope {
    /// Locks, records and commands
    Data,
    /// Looking at queues, commands, locks and activity, with keys and payloads masked
    Read,
    /// All that an operator may do: settle, release, requeue, pause, reveal
    Admin,
    /// Reading /metrics
    Metrics,
}

impl TokenScope {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Read => "read",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenEntry {
    name: String,
    sha256: String,
    #[serde(default = "default_tenant")]
    tenant: String,
    scopes: Vec<TokenScope>,
}

fn default_tenant() -> String {
    Tenant::default().as_str().to_owned()
}

pub(super) fn parse(entries: Vec<toml::Value>) -> anyhow::Result<Vec<TokenRule>> {
    let mut rules: Vec<TokenRule> = Vec::new();
    for (i, value) in entries.into_iter().enumerate() {
        let entry: TokenEntry = match value.try_into() {
            Ok(entry) => entry,
            Err(error) => bail!("[[token]] number {}: {}", i + 1, error.message()),
        };
        let rule = rule(&entry).with_context(|| format!("[[token]] `{}`", entry.name))?;
        for other in &rules {
            let name = &rule.name;
            ensure!(other.name != *name, "[[token]] `{name}` is there twice");
            let same = other.sha256 == rule.sha256;
            ensure!(!same, "[[token]] `{name}` has the same sha256 as another one");
        }
        rules.push(rule);
    }
    Ok(rules)
}

/// Refuses a name that could not be told from another in a log line.
pub(crate) fn check_token_name(name: &str) -> Result<(), &'static str> {
    match name {
        "" => Err("a name is not empty"),
        _ if name.len() > 255 => Err("a name has at most 255 bytes"),
        _ if name.contains(char::is_control) => Err("a name has no control characters"),
        _ => Ok(()),
    }
}

fn rule(entry: &TokenEntry) -> anyhow::Result<TokenRule> {
    check_token_name(&entry.name).map_err(|text| anyhow::anyhow!("`name`: {text}"))?;
    ensure!(!entry.scopes.is_empty(), "`scopes` is empty; it takes data, read, admin, metrics");
    let sha256 = hash(&entry.sha256).context("`sha256` takes 64 hexadecimal digits")?;
    Ok(TokenRule {
        name: entry.name.as_str().into(),
        sha256,
        tenant: Tenant::new(&entry.tenant)?,
        scopes: entry.scopes.clone(),
    })
}

fn hash(hex: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(hash)
}
