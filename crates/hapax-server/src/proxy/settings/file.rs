//! What only the settings file can say to the proxy.

use std::collections::BTreeMap;

use anyhow::bail;
use hapax::OnUnknown;
use hapax::lock::OnStoreError;
use hapax_http::{FingerprintOf, Scope, Verdict};
use serde::Deserialize;

use super::super::target::Target;
use super::TABLE;
use super::value::Methods;
use crate::settings::{self, OrZero, Setting, Size, Text, Value};

type Time = Text<std::time::Duration>;

const EXAMPLES: &str = "\
Examples:
  hapax proxy --upstream http://127.0.0.1:3000
      in front of any service; then, twice, and the service sees one request:
      curl -i -H 'Idempotency-Key: tea-1' -d cups=2 http://127.0.0.1:8788/orders
  hapax proxy --upstream http://127.0.0.1:3000 --store redis://10.0.0.5/0 --listen 0.0.0.0:8788
      on several machines that share their keys
  hapax proxy --config hapax.toml
      with routes of their own upstream and policy:
          [[proxy.route]]
          path = \"/payments/*\"
          upstream = \"http://127.0.0.1:4000\"
          require_key = true
          statuses = { 404 = \"give-back\" }

A problem document's `retryable` says whether the same request may be sent again. What every status
means, and what to do about an unknown outcome, is in docs/proxy.md.";

/// What only the file can say.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Section {
    pub(super) fingerprint: Option<FingerprintSection>,
    pub(super) statuses: Statuses,
    pub(super) route: Vec<RouteSection>,
}

/// `[[proxy.route]]`: what it does not say is as for the whole proxy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouteSection {
    pub(super) path: String,
    pub(super) upstream: Option<Text<Target>>,
    pub(super) methods: Option<Vec<String>>,
    pub(super) scope: Option<Text<Scope>>,
    pub(super) wait: Option<Text<OrZero>>,
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

impl settings::Section for Section {
    const TABLE: &'static [Setting] = TABLE;
    const KEYS: &'static str = "proxy.fingerprint, proxy.statuses, [[proxy.route]]";
    const EXAMPLES: Option<&'static str> = Some(EXAMPLES);

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
