//! Single rows of a masked list: an operator names a command or lock by the hash of its key, and the server finds it.

use hapax::activity::key_hash;
use hapax::{ClaimQuery, Key};
use tokio::time::Instant;

use super::max_steps_time;
use crate::api::v1::prelude::*;

/// Whether the last segment of the path is a hash, by the query parameter `by`.
pub(super) fn is_by_hash(by: Option<&str>) -> Result<bool, Problem> {
    match by {
        None => Ok(false),
        Some("hash") => Ok(true),
        Some(_) => Err(Problem::invalid(
            "query parameter `by` takes only `hash`; without it a row is named by its key",
        )),
    }
}

/// The key with this hash among the claims of the query. The `after` of the page that shows the row makes the search short: it begins
/// there, and begins anew if the row is not found behind it.
pub(super) async fn find_key(
    app: &AppState,
    mut query: ClaimQuery,
    hash: &str,
) -> Result<Option<Key>, Problem> {
    let until = Instant::now() + max_steps_time(app);
    query.max_claims = 1000;
    let mut is_from_start = query.after.is_none();
    loop {
        let page = app.call_store(app.store.list(&query)).await?;
        let found = page.claims.into_iter().find(|listed| key_hash(&listed.key) == hash);
        if let Some(found) = found {
            return Ok(Some(found.key));
        }
        match page.next {
            Some(_) if Instant::now() >= until => {
                let text = "there are too many rows to find the one with this hash; give the `after` \
                            of its page, or its key";
                return Err(Problem::invalid(text));
            }
            None if is_from_start => return Ok(None),
            None => (query.after, is_from_start) = (None, true),
            next => query.after = next,
        }
    }
}
