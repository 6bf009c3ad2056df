//! `hapax overview` and `hapax suppressed`: the activity of an installation, and the duplicates that did no harm.

use std::time::{Duration, UNIX_EPOCH};

use hyper::Method;
use tokio::time::{Instant, sleep};

use super::{
    Backend, CliError, ClientRequest, ListPage, PageArgs, columns, print_line, print_response,
    with_exit_codes,
};
use crate::api::{Attention, ListedDuplicate, ListedNode, Overview, SuppressedList};

#[derive(clap::Args)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax overview                                        what needs a person, the nodes, the last hour
  hapax overview --json | jq -e '.attention == []'      fails if something does
  hapax overview --store sqlite:hapax.db                without a server

Needs the scope `read` or `admin` where the server has tokens."))]
pub(crate) struct OverviewArgs {}

impl OverviewArgs {
    pub(crate) async fn run(self, backend: &Backend, json: bool) -> Result<(), CliError> {
        let ask = || backend.send(ClientRequest::new(Method::GET, &["operator", "overview"]));
        let until = Instant::now() + LONGEST_COUNT;
        let (response, overview) = loop {
            let response = ask().await?;
            let overview: Overview = response.read()?;
            if !overview.counting || Instant::now() >= until {
                break (response, overview);
            }
            sleep(Duration::from_millis(200)).await;
        };
        if json {
            return print_response(&response, true);
        }
        if overview.counting {
            print_line("Unknown outcomes are still being counted: ask again for all of them.");
        }
        print_table(&["NEEDS A PERSON", "COUNT", "QUEUE", ""], &overview.attention, attention_row);
        print_table(&["NODE", "EDGE", "VERSION", "SEEN", "TARGET"], &overview.nodes, node_row);
        print_table(&LAST_HOUR, &edge_sums(&overview), |row| row.clone());
        Ok(())
    }
}

/// How long unknown outcomes that are being counted (Redis) are waited for.
const LONGEST_COUNT: Duration = Duration::from_secs(5);

/// Prints a table, unless it has no rows.
fn print_table<T>(head: &[&str], rows: &[T], row: impl Fn(&T) -> Vec<String>) {
    if !rows.is_empty() {
        let head = head.iter().map(|title| (*title).to_owned()).collect();
        let table: Vec<_> = std::iter::once(head).chain(rows.iter().map(row)).collect();
        print_line(columns(&table));
    }
}

fn attention_row(one: &Attention) -> Vec<String> {
    let more = if one.more { "+" } else { "" };
    let count = one.count.map_or_else(|| "-".to_owned(), |count| format!("{count}{more}"));
    vec![one.what.clone(), count, one.queue.clone().unwrap_or_else(|| "-".into()), one.text.clone()]
}

fn node_row(node: &ListedNode) -> Vec<String> {
    let seen = match node.stopped {
        true => "stopped".to_owned(),
        false => format!("{} s ago", node.seen_ago_ms / 1000),
    };
    let target = node.target.as_ref().map_or_else(
        || "-".to_owned(),
        |target| format!("{} {}", target.name, if target.up { "up" } else { "away" }),
    );
    vec![node.node.clone(), node.edge.clone(), node.version.clone(), seen, target]
}

const LAST_HOUR: [&str; 7] =
    ["LAST HOUR", "REQUESTS", "FIRST RUNS", "REPLAYS", "WAITS", "REFUSALS", "ERRORS"];

/// The counts of each kind of node, over all minutes.
fn edge_sums(overview: &Overview) -> Vec<Vec<String>> {
    let mut sums: std::collections::BTreeMap<&str, [u64; 6]> = std::collections::BTreeMap::new();
    for (edge, minute) in overview.minutes.iter().flat_map(|minute| &minute.edges) {
        let counts = [
            minute.requests,
            minute.first_runs,
            minute.replays,
            minute.waits,
            minute.refusals,
            minute.errors,
        ];
        let sum = sums.entry(edge).or_default();
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let row = |(edge, counts): (&str, [u64; 6])| {
        std::iter::once(edge.to_owned()).chain(counts.map(|count| count.to_string())).collect()
    };
    sums.into_iter().map(row).collect()
}

#[derive(clap::Args)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax suppressed                                      duplicates that did no harm, newest first
  hapax suppressed --kind refused --operation pay       only these
  hapax suppressed --all --json | jq -r '.items[].operation' | sort | uniq -c

Samples of the last two hours. Needs the scope `read` or `admin` where the server has tokens."))]
pub(crate) struct SuppressedArgs {
    #[command(flatten)]
    pages: PageArgs,
    /// Only `replayed`, `waited`, `refused` or `out_of_order`
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Only this operation, consumer or domain
    #[arg(long, value_name = "NAME")]
    operation: Option<String>,
}

impl SuppressedArgs {
    pub(crate) async fn run(self, backend: &Backend, json: bool) -> Result<(), CliError> {
        let Self { pages, kind, operation } = self;
        let request = || {
            ClientRequest::new(Method::GET, &["operator", "suppressed"])
                .query("kind", kind.clone())
                .query("operation", operation.clone())
        };
        pages.print::<SuppressedList>(backend, request, json).await
    }
}

impl ListPage for SuppressedList {
    const HEAD: &'static [&'static str] =
        &["AT", "NODE", "OPERATION", "KIND", "AFTER THE FIRST", "CALLER", "KEY HASH"];

    fn into_rows(self) -> (Vec<Vec<String>>, Option<String>) {
        let row = |one: ListedDuplicate| {
            let at = UNIX_EPOCH + Duration::from_millis(one.at);
            let kind = serde_json::to_value(one.kind).unwrap_or_default();
            let after = one.after_first_ms.map(Duration::from_millis);
            vec![
                humantime::format_rfc3339_millis(at).to_string(),
                one.node,
                one.operation,
                kind.as_str().unwrap_or_default().to_owned(),
                after.map_or_else(|| "-".into(), |t| humantime::format_duration(t).to_string()),
                one.caller.unwrap_or_else(|| "-".into()),
                one.key_hash,
            ]
        };
        (self.items.into_iter().map(row).collect(), self.next)
    }
}
