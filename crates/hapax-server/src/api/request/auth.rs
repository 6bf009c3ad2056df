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
    pub(crate) credentials: Credentials,
    /// Whether the caller may do all that an operator may; otherwise `read` is the most.
    pub(crate) is_admin: bool,
}

/// What a caller proved its identity with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// Nothing: the server has no tokens and is for this machine alone.
    Loopback,
    BearerToken,
    /// The cookie of a session of the console.
    ConsoleSession,
    SignedLink,
}

impl ApiCaller {
    /// The caller of a token, if the token has one of the `allowed` scopes.
    pub(crate) fn of_token(
        rule: &TokenRule,
        credentials: Credentials,
        allowed: &[TokenScope],
    ) -> Result<Self, Problem> {
        if allowed.iter().any(|scope| rule.scopes.contains(scope)) {
            let (name, tenant) = (rule.name.clone(), rule.tenant.clone());
            let is_admin = rule.scopes.contains(&TokenScope::Admin);
            return Ok(Self { name, tenant, link: None, credentials, is_admin });
        }
        let scopes: Vec<_> = allowed.iter().map(|scope| format!("`{}`", scope.as_str())).collect();
        let text = format!("the token lacks the scope {}", scopes.join(" or "));
        let challenge = "Bearer realm=\"hapax\", error=\"insufficient_scope\"";
        Err(Problem::new(ProblemKind::Forbidden, text).header(WWW_AUTHENTICATE, challenge))
    }

    /// Everybody on this machine, where the server has no tokens.
    pub(crate) fn of_loopback(tenant: &Tenant) -> Self {
        let (name, credentials) = ("-".into(), Credentials::Loopback);
        Self { name, tenant: tenant.clone(), link: None, credentials, is_admin: true }
    }
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
                let (link, credentials) = (Some(Arc::new(link)), Credentials::SignedLink);
                Ok(ApiCaller { name: "link".into(), tenant, link, credentials, is_admin: false })
            }
            _ => {
                let text = "`access` is not a link that this server signed, or it has expired";
                Err(Problem::new(ProblemKind::Unauthorized, text))
            }
        }
    }

    /// Authenticates the bearer token, which must have one of the `allowed` scopes.
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        allowed: &[TokenScope],
    ) -> Result<ApiCaller, Problem> {
        match self {
            Self::LocalOnly(tenant) => Ok(ApiCaller::of_loopback(tenant)),
            Self::Tokens(_) => {
                let rule = self.find_bearer(headers)?.ok_or_else(token_needed)?;
                ApiCaller::of_token(rule, Credentials::BearerToken, allowed)
            }
        }
    }

    /// The rule of the bearer token, if there is a valid one.
    pub(crate) fn find_bearer(&self, headers: &HeaderMap) -> Result<Option<&TokenRule>, Problem> {
        Ok(bearer_token(headers)?.and_then(|token| self.find_token(token)))
    }

    /// The rule of a token. Compares with every rule in constant time, so that the duration reveals
    /// nothing.
    pub(crate) fn find_token(&self, token: &str) -> Option<&TokenRule> {
        self.find_token_hash(&Sha256::digest(token.as_bytes()).into())
    }

    /// The rule of the token with this SHA-256, as [`Self::find_token`].
    pub(crate) fn find_token_hash(&self, hash: &[u8; 32]) -> Option<&TokenRule> {
        let Self::Tokens(rules) = self else { return None };
        rules.iter().fold(None, |found, rule| match bool::from(rule.sha256.ct_eq(hash)) {
            true => Some(rule),
            false => found,
        })
    }
}

fn token_needed() -> Problem {
    let text = "send `Authorization: Bearer` with a token of this server";
    unauthorized(text)
}

/// 401, with the challenge that clients of the API understand.
pub(crate) fn unauthorized(text: &'static str) -> Problem {
    let problem = Problem::new(ProblemKind::Unauthorized, text);
    problem.header(WWW_AUTHENTICATE, "Bearer realm=\"hapax\"")
}

fn bearer_token(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let value = single_header(headers, &AUTHORIZATION)?.and_then(|value| value.to_str().ok());
    let (scheme, token) = value.and_then(|value| value.split_once(' ')).unwrap_or_default();
    Ok(scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' ')))
}
