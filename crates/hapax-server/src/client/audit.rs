//! `hapax audit`: what operators did and revealed.

use std::time::{Duration, UNIX_EPOCH};

use hyper::Method;

use super::{Backend, CliError, ClientRequest, ListPage, PageArgs, with_exit_codes};
use crate::api::{AuditPage, AuditedAction};

#[derive(clap::Args)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax audit                                      the last 100 actions, newest first
  hapax audit --limit 1000 --json | jq -c '.items[] | select(.action == \"discard\")'
  hapax audit --store sqlite:hapax.db              without a server

A row has the action, its result, who did it, and its note (`--note` of the actions). `begun`
is an action that runs, or whose node died before it knew the result; it may have been done.
Needs the scope `read` or `admin` where the server has tokens."))]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    pages: PageArgs,
}

impl AuditArgs {
    pub(crate) async fn run(self, backend: &Backend, json: bool) -> Result<(), CliError> {
        let request = || ClientRequest::new(Method::GET, &["operator", "audit"]);
        self.pages.print::<AuditPage>(backend, request, json).await
    }
}

impl ListPage for AuditPage {
    const HEAD: &'static [&'static str] = &["AT", "WHO", "ACTION", "RESULT", "SUBJECT", "NOTE"];

    fn into_rows(self) -> (Vec<Vec<String>>, Option<String>) {
        (self.items.into_iter().map(row).collect(), self.next)
    }
}

fn row(action: AuditedAction) -> Vec<String> {
    let subject = &action.subject;
    let key = match action.masked {
        true => Some("(masked)".to_owned()),
        false => subject.key.clone(),
    };
    let named = [&subject.queue, &subject.operation, &key, &subject.item, &subject.reason];
    let named = [Some(&subject.kind)].into_iter().chain(named.map(Option::as_ref)).flatten();
    let named: Vec<_> = named.map(String::as_str).collect();
    let at = UNIX_EPOCH + Duration::from_millis(action.at);
    vec![
        humantime::format_rfc3339_seconds(at).to_string(),
        action.who,
        action.action,
        action.result,
        named.join(" "),
        action.note.unwrap_or_default(),
    ]
}
