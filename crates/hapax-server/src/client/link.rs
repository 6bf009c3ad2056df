//! `hapax token link`: a signed link with which a browser follows jobs.

use std::process::ExitCode;
use std::time::Duration;

use hapax::{Clock, Key, SystemClock, Tenant};

use super::{Failure, duration, line};
use crate::serve::signed_link::SignedLink;
use crate::settings::{SettingValue, SigningSecret};

const EXAMPLES: &str = "\
Examples:
  hapax token link --job scan/job-1
  hapax token link --job scan/1 --job scan/2 --ttl 10m --tenant shop
  curl -N \"http://127.0.0.1:8787/v1/jobs/scan/job-1/events?access=$(hapax token link --job scan/job-1)\"

EventSource sends no headers, so a page cannot present a token. A link stands for one: it opens the
jobs that it names, to be read, until it expires, and nothing else. The secret is the server's
--sse-secret: every backend that has it can sign links by itself,
  link = BASE64URL(json) \".\" BASE64URL(HMAC-SHA256(secret, BASE64URL(json)))       (no padding)
  json = {\"tenant\":\"default\",\"jobs\":[[\"scan\",\"job-1\"]],\"expires\":1767225600}";

/// The arguments of `hapax token link`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct MakeLink {
    /// What it opens, as `domain/job_id`; may be repeated
    #[arg(long = "job", required = true, value_name = "DOMAIN/JOB_ID")]
    jobs: Vec<String>,
    /// How long it is good
    #[arg(long, default_value = "1h", value_parser = duration, value_name = "TIME")]
    ttl: Duration,
    /// Whose jobs they are
    #[arg(long, default_value = "default")]
    tenant: String,
    /// The server's --sse-secret
    #[arg(long, env = "HAPAX_SSE_SECRET", hide_env_values = true, value_name = "TEXT")]
    secret: String,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

impl MakeLink {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let usage = |text: String| Failure::Usage(text);
        let secret = SigningSecret::parse(&self.secret)
            .map_err(|text| usage(format!("--secret: {text}")))?;
        let tenant = Tenant::new(&self.tenant).map_err(|error| usage(error.to_string()))?;
        let job = |text: &String| {
            let (domain, job_id) = text
                .split_once('/')
                .ok_or_else(|| usage("--job takes DOMAIN/JOB_ID, such as scan/job-1".into()))?;
            Key::job(&tenant, domain, job_id).map_err(|error| usage(error.to_string()))?;
            Ok((domain.to_owned(), job_id.to_owned()))
        };
        let jobs = self.jobs.iter().map(job).collect::<Result<_, Failure>>()?;
        let expires = SystemClock.now().plus(self.ttl).0.div_ceil(1000);
        let link = SignedLink { tenant: self.tenant.clone(), jobs, expires };
        let access = link.sign(&secret);
        if self.json {
            line(serde_json::json!({"access": access, "expires": expires}));
        } else {
            line(access);
        }
        Ok(ExitCode::SUCCESS)
    }
}
