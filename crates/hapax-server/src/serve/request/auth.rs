//! Who is asking, and whether they may.

use std::sync::Arc;

use hapax::Tenant;
use hyper::header::{AUTHORIZATION, HeaderMap, WWW_AUTHENTICATE};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::headers::one;
use crate::serve::problem::{Problem, ProblemKind};
use crate::serve::sse::signed_link::Link;
use crate::settings::{Scope, Secret, TokenRule};

/// Who is asking.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The token's name; `-` where none is needed.
    pub(crate) name: Arc<str>,
    /// Whose data is seen.
    pub(crate) tenant: Tenant,
    /// What alone is seen, where a signed link stands for the token.
    pub(crate) link: Option<Arc<Link>>,
}

/// Who may call.
pub(crate) enum Access {
    /// Everybody on this machine, as this tenant.
    Local(Tenant),
    /// Whoever has one of these tokens.
    Tokens(Vec<TokenRule>),
}

impl Access {
    pub(crate) fn new(tokens: &[TokenRule]) -> Self {
        if tokens.is_empty() {
            Self::Local(Tenant::default())
        } else {
            Self::Tokens(tokens.to_vec())
        }
    }

    /// Everybody whose data can be seen.
    pub(crate) fn tenants(&self) -> Vec<Tenant> {
        match self {
            Self::Local(tenant) => vec![tenant.clone()],
            Self::Tokens(rules) => rules.iter().map(|rule| rule.tenant.clone()).collect(),
        }
    }

    /// Who presents a signed link: nobody by name, and of this server's tenants.
    pub(crate) fn admit_link(
        &self,
        text: &str,
        secret: Option<&Secret>,
    ) -> Result<Caller, Problem> {
        let link = secret.and_then(|secret| Link::read(text, secret));
        let tenant = link.as_ref().and_then(Link::tenant);
        match (link, tenant.filter(|tenant| self.tenants().contains(tenant))) {
            (Some(link), Some(tenant)) => {
                Ok(Caller { name: "link".into(), tenant, link: Some(Arc::new(link)) })
            }
            _ => Err(Problem::new(
                ProblemKind::Unauthorized,
                "`access` is no link that this server takes, or it has expired",
            )),
        }
    }

    /// Who is asking, where they may do what `scope` names.
    pub(crate) fn admit(&self, headers: &HeaderMap, scope: Scope) -> Result<Caller, Problem> {
        let rules = match self {
            Self::Local(tenant) => {
                return Ok(Caller { name: "-".into(), tenant: tenant.clone(), link: None });
            }
            Self::Tokens(rules) => rules,
        };
        let rule = bearer(headers)?.and_then(|token| find(rules, token)).ok_or_else(|| {
            Problem::new(
                ProblemKind::Unauthorized,
                "send `Authorization: Bearer` and a token of this server",
            )
            .header(WWW_AUTHENTICATE, "Bearer realm=\"hapax\"")
        })?;
        let admin_will_do = scope == Scope::Metrics && rule.scopes.contains(&Scope::Admin);
        if rule.scopes.contains(&scope) || admin_will_do {
            let (name, tenant) = (rule.name.clone(), rule.tenant.clone());
            return Ok(Caller { name, tenant, link: None });
        }
        let text = format!("the token lacks the scope `{}`", scope.as_str());
        let challenge = "Bearer realm=\"hapax\", error=\"insufficient_scope\"";
        Err(Problem::new(ProblemKind::Forbidden, text).header(WWW_AUTHENTICATE, challenge))
    }
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let value = one(headers, &AUTHORIZATION)?.and_then(|value| value.to_str().ok());
    let (scheme, token) = value.and_then(|value| value.split_once(' ')).unwrap_or_default();
    Ok(scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' ')))
}

/// Compares with every rule, and each in constant time: how long it takes tells nothing.
fn find<'a>(rules: &'a [TokenRule], token: &str) -> Option<&'a TokenRule> {
    let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
    rules.iter().fold(
        None,
        |found, rule| {
            if bool::from(rule.sha256.ct_eq(&hash)) { Some(rule) } else { found }
        },
    )
}
