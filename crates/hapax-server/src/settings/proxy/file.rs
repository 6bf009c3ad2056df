//! The routes, fingerprints and verdicts of the proxy, which only the settings file can express.

use std::collections::BTreeMap;

use anyhow::{bail, ensure};
use hapax::OnUnknown;
use hapax::lock::OnStoreError;
use hapax_http::{CallerScope, FingerprintOf, Verdict};
use serde::Deserialize;

use super::{KeyedMethods, UpstreamUrl};
use crate::settings::declare::FileOnly;
use crate::settings::values::{ByteSize, DurationOrZero, FileValue, SettingValue};

type Time = FileValue<std::time::Duration>;

/// The part of `[proxy]` that no flag can express.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ProxySection {
    pub(crate) fingerprint: Option<FingerprintSection>,
    pub(crate) statuses: StatusVerdicts,
    pub(crate) route: Vec<RouteSection>,
}

/// `[[proxy.route]]`: a missing value is that of the whole proxy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteSection {
    pub(crate) path: String,
    pub(crate) upstream: Option<FileValue<UpstreamUrl>>,
    pub(crate) methods: Option<Vec<String>>,
    pub(crate) scope: Option<FileValue<CallerScope>>,
    pub(crate) wait: Option<FileValue<DurationOrZero>>,
    pub(crate) lease: Option<Time>,
    pub(crate) retention: Option<Time>,
    pub(crate) require_key: Option<bool>,
    pub(crate) on_unknown: Option<FileValue<OnUnknown>>,
    pub(crate) on_store_error: Option<FileValue<OnStoreError>>,
    pub(crate) limit: Option<FileValue<ByteSize>>,
    pub(crate) upstream_timeout: Option<Time>,
    pub(crate) fingerprint: Option<FingerprintSection>,
    #[serde(default)]
    pub(crate) statuses: StatusVerdicts,
}

/// Verdicts of single statuses: `{ 404 = "give-back" }`.
pub(crate) type StatusVerdicts = BTreeMap<String, FileValue<Verdict>>;

impl RouteSection {
    pub(crate) fn methods(&self) -> anyhow::Result<Option<KeyedMethods>> {
        let Some(names) = &self.methods else { return Ok(None) };
        KeyedMethods::parse(&names.join(","))
            .map(Some)
            .map_err(|e| anyhow::anyhow!("`methods`: {e}"))
    }
}

/// `"bytes"`, `"json"`, `{ only = […] }` or `{ except = […] }`.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "`fingerprint` takes \"bytes\", \"json\", { only = [\"/pointer\"] } or { except = [\"/pointer\"] }"
)]
pub(crate) enum FingerprintSection {
    Whole(WholeBody),
    Only { only: Vec<String> },
    Except { except: Vec<String> },
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WholeBody {
    Bytes,
    Json,
}

impl FingerprintSection {
    pub(crate) fn read(&self) -> anyhow::Result<FingerprintOf> {
        let pointers = |pointers: &Vec<String>| {
            let valid = pointers.iter().all(|pointer| pointer.starts_with('/'));
            let expected = "`fingerprint`: JSON pointers such as \"/order/id\" are expected";
            ensure!(valid && !pointers.is_empty(), expected);
            Ok(pointers.clone())
        };
        Ok(match self {
            Self::Whole(WholeBody::Bytes) => FingerprintOf::Bytes,
            Self::Whole(WholeBody::Json) => FingerprintOf::Json,
            Self::Only { only } => FingerprintOf::Only(pointers(only)?),
            Self::Except { except } => FingerprintOf::Except(pointers(except)?),
        })
    }
}

impl FileOnly for ProxySection {
    const KEYS: &'static str = "proxy.fingerprint, proxy.statuses, [[proxy.route]]";

    fn take(file: &mut toml::Table) -> anyhow::Result<Self> {
        let proxy = match file.get_mut("proxy") {
            None => return Ok(Self::default()),
            Some(toml::Value::Table(proxy)) => proxy,
            Some(_) => bail!("`proxy` takes a table, as in [proxy]"),
        };
        let mut section = toml::Table::new();
        for name in ["fingerprint", "statuses", "route"] {
            section.extend(proxy.remove(name).map(|value| (name.to_owned(), value)));
        }
        let wrong = |error: toml::de::Error| anyhow::anyhow!("[proxy]: {}", error.message());
        section.try_into().map_err(wrong)
    }
}
