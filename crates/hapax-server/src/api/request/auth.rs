//! Authentication: bearer tokens, signed links, and loopback access without tokens.

use std::sync::Arc;

use hapax::Tenant;
use hyper::header::{AUTHORIZATION, HeaderMap, WWW_AUTHENTICATE};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::headers::single_header;
use crate::api::sse::signed_link::SignedLink;
use crate::problem::{Problem, ProblemKind};
use crate::settings::{SigningSecret, TokenRule, TokenScope};

#[derive(Clone, Debug)]
pub(crate) struct ApiCaller {
    /// The token's name; `-` if the server has no tokens.
    pub(crate) name: Arc<str>,
    pub(crate) tenant: Tenant,
    /// The signed link that stands for a token; only its jobs may be read.
    pub(crate) link: Option<Arc<SignedLink>>,
}

pub(crate) enum AccessPolicy {
    /// Every process on this machine, as this tenant.
    LocalOnly(Tenant),
    Tokens(Vec<TokenRule>),
}

impl AccessPolicy {
    pub(crate) fn new(tokens: &[TokenRule]) -> Self {
        if tokens.is_empty() {
            Self::LocalOnly(Tenant::default())
        } else {
            Self::Tokens(tokens.to_vec())
        }
    }

    pub(crate) fn tenants(&self) -> Vec<Tenant> {
        match self {
            Self::LocalOnly(tenant) => vec![tenant.clone()],
            Self::Tokens(rules) => rules.iter().map(|rule| rule.tenant.clone()).collect(),
        }
    }

    /// Authenticates a signed link, whose tenant must be one of this server.
    pub(crate) fn authenticate_link(
        &self,
        text: &str,
        secret: Option<&SigningSecret>,
    ) -> Result<ApiCaller, Problem> {
        let link = secret.and_then(|secret| SignedLink::verify(text, secret));
        let tenant = link.as_ref().and_then(SignedLink::tenant);
        match (link, tenant.filter(|tenant| self.tenants().contains(tenant))) {
            (Some(link), Some(tenant)) => {
                Ok(ApiCaller { name: "link".into(), tenant, link: Some(Arc::new(link)) })
            }
            _ => {
                let text = "`access` is not a link that this server signed, or it has expired";
                Err(Problem::new(ProblemKind::Unauthorized, text))
            }
        }
    }

    /// Authenticates the bearer token, which must have `scope`.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        scope: TokenScope,
    ) -> Result<ApiCaller, Problem> {
        let rules = match self {
            Self::LocalOnly(tenant) => {
                return Ok(ApiCaller { name: "-".into(), tenant: tenant.clone(), link: None });
            }
            Self::Tokens(rules) => rules,
        };
        let Some(rule) = bearer_token(headers)?.and_then(|token| find_rule(rules, token)) else {
            let text = "send `Authorization: Bearer` with a token of this server";
            let problem = Problem::new(ProblemKind::Unauthorized, text);
            return Err(problem.header(WWW_AUTHENTICATE, "Bearer realm=\"hapax\""));
        };
        let admin_will_do =
            scope == TokenScope::Metrics && rule.scopes.contains(&TokenScope::Admin);
        if rule.scopes.contains(&scope) || admin_will_do {
            let (name, tenant) = (rule.name.clone(), rule.tenant.clone());
            return Ok(ApiCaller { name, tenant, link: None });
        }
        let text = format!("the token lacks the scope `{}`", scope.as_str());
        let challenge = "Bearer realm=\"hapax\", error=\"insufficient_scope\"";
        Err(Problem::new(ProblemKind::Forbidden, text).header(WWW_AUTHENTICATE, challenge))
    }
}

fn bearer_token(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let value = single_header(headers, &AUTHORIZATION)?.and_then(|value| value.to_str().ok());
    let (scheme, token) = value.and_then(|value| value.split_once(' ')).unwrap_or_default();
    Ok(scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' ')))
}

/// Compares with every rule in constant time, so that the duration reveals nothing.
fn find_rule<'a>(rules: &'a [TokenRule], token: &str) -> Option<&'a TokenRule> {
    let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
    rules.iter().fold(None, |found, rule| match bool::from(rule.sha256.ct_eq(&hash)) {
        true => Some(rule),
        false => found,
    })
}
