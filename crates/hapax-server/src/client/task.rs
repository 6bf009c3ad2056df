//! `hapax task`: actions on many rows that a server runs, and waiting for one.

use std::time::Duration;

use clap::Subcommand;
use hyper::Method;

use super::note::NoteArgs;
use super::{
    Backend, CliError, ClientRequest, ClientResponse, columns, print_line, print_response,
    progress_bar, with_exit_codes,
};
use crate::api::{TaskBody, TaskListBody};

/// How often the progress of a task is asked for.
const POLL: Duration = Duration::from_millis(200);

#[derive(Subcommand)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax task list                      what this server's operators set going
  hapax task show 5f2c9a0b7d1e4c33     how far it is
  hapax task stop 5f2c9a0b7d1e4c33     after the row that it is at

`hapax dead requeue --where` and the like begin tasks. A task is known to the server that runs it."))]
pub(crate) enum TaskAction {
    /// List the tasks that the server runs or has run
    #[command(after_help = with_exit_codes("\
Examples:
  hapax task list
  hapax task list --json | jq -c '.tasks[] | select(.state == \"running\")'"))]
    List,
    /// Show how far a task is
    #[command(after_help = with_exit_codes("\
Examples:
  hapax task show 5f2c9a0b7d1e4c33"))]
    Show {
        /// The task's id, as `list` shows it
        id: String,
    },
    /// Stop a task after the row that it is at; what it did stays done
    #[command(after_help = with_exit_codes("\
Examples:
  hapax task stop 5f2c9a0b7d1e4c33 --note 'the broker is down again'"))]
    Stop {
        /// The task's id, as `list` shows it
        id: String,
        #[command(flatten)]
        note: NoteArgs,
    },
}

impl TaskAction {
    pub(crate) async fn run(self, backend: &Backend, json: bool) -> Result<(), CliError> {
        match self {
            Self::List => list(backend, json).await,
            Self::Show { id } => backend.print(task_request(Method::GET, &id), json).await,
            Self::Stop { id, note } => {
                backend.print(note.add_to(task_request(Method::DELETE, &id)), json).await
            }
        }
    }
}

fn task_request(method: Method, id: &str) -> ClientRequest {
    ClientRequest::new(method, &["operator", "tasks", id])
}

async fn list(backend: &Backend, json: bool) -> Result<(), CliError> {
    let request = ClientRequest::new(Method::GET, &["operator", "tasks"]);
    let response = backend.send(request).await?;
    if json {
        return print_response(&response, true);
    }
    let titles = ["ID", "STATE", "ACTION", "DONE", "FAILED", "OF", "BY"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for task in response.read::<TaskListBody>()?.tasks {
        let total = task.total.map_or_else(|| "-".into(), |total| total.to_string());
        let counts = [task.done.to_string(), task.failed.to_string(), total];
        let cells = [task.id, task.state, task.action].into_iter().chain(counts).chain([task.by]);
        rows.push(cells.collect());
    }
    if rows.len() > 1 {
        print_line(columns(&rows));
    }
    Ok(())
}

/// Waits for the end of a task that was begun, and prints it. Whoever interrupts the wait does not stop
/// the task of a server.
pub(crate) async fn wait_for_end(
    backend: &Backend,
    begun: ClientResponse,
    json: bool,
) -> Result<(), CliError> {
    let mut response = begun;
    let mut task: TaskBody = response.read()?;
    let bar = progress_bar(task.total, "{spinner} {pos}/{len} rows, {msg}");
    while task.state == "running" {
        bar.set_position(task.done + task.failed);
        bar.set_message(format!("{} of them failed; hapax task stop {}", task.failed, task.id));
        tokio::time::sleep(POLL).await;
        response = backend.send(task_request(Method::GET, &task.id)).await?;
        task = response.read()?;
    }
    bar.finish_and_clear();
    if json {
        print_response(&response, true)?;
    } else {
        print_line(format_args!("{}  {}\nfailed  {}", task.action, task.done, task.failed));
    }
    match task.error {
        Some(error) => Err(CliError::Local(format!("the task failed: {error}"))),
        None if task.state == "stopped" => Err(CliError::Local("the task was stopped".into())),
        None => Ok(()),
    }
}
