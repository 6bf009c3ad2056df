//! A ruling, and why there may be none.

use hapax::Fence;
use hapax::command::{CommandState, CommandView, Commands, Overruled, Ruling};

use crate::serve::commands::missing;
use crate::serve::problem::{ALREADY_COMPLETED, IN_PROGRESS, Problem};

/// Does what the operator decided. `fence` becomes that of the attempt which it was about.
pub(super) async fn apply(
    commands: &Commands,
    operation: &str,
    key: &str,
    ruling: &Ruling,
    fence: &mut Option<Fence>,
) -> Result<(), Problem> {
    let before = commands.look(operation, key).await?.ok_or_else(missing)?;
    *fence = before.fence;
    match commands.overrule(operation, key, ruling).await? {
        Overruled::Done => Ok(()),
        Overruled::Missing => Err(missing()),
        Overruled::Pending => Err(in_progress(&before)),
        Overruled::Completed => {
            // An operator who did not hear the answer asks again, and is told the same.
            let after = commands.look(operation, key).await?;
            let said = after.is_some_and(|after| says(&after, ruling));
            if said { Ok(()) } else { Err(completed()) }
        }
    }
}

fn says(view: &CommandView, ruling: &Ruling) -> bool {
    match (&view.state, ruling) {
        (CommandState::Completed { response, .. }, Ruling::Settle(given)) => response == given,
        _ => false,
    }
}

fn in_progress(view: &CommandView) -> Problem {
    let text = "its owner is believed alive, and decides; nothing was changed";
    let problem = Problem::new(&IN_PROGRESS, text);
    match view.state {
        CommandState::Pending { lease_left } => problem.retry_after(lease_left),
        _ => problem,
    }
}

fn completed() -> Problem {
    Problem::new(&ALREADY_COMPLETED, "it stays as it is; nothing was changed")
}
