//! For stacks that hand out a connection of `rusqlite`: the command and its message in a transaction of it.

use hapax::sqlite::HapaxTransaction;
use hapax::sqlite::rusqlite::{self, Connection};
use hapax::{Operation, Tenant, queue::QueueItem};

use crate::shared::{CREATE, Result, TRANSACTION};

/// Compiles only if the stack's `rusqlite` is the one that hapax uses.
pub fn create_order_twice(shop: &mut Connection) -> Result<()> {
    shop.execute_batch(CREATE)?;
    for is_retry in [false, true] {
        let tx = shop.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let item = QueueItem::new(&Tenant::default(), "orders", "bento").key("order-1");
        let order = tx.hapax().once(Operation("CreateOrder"), "key-1", "bento", |tx| {
            tx.execute(TRANSACTION[0], [])?;
            tx.hapax().enqueue(&item)?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(tx.last_insert_rowid())
        });
        let order = order.map_err(|error| error.to_string())?;
        tx.commit()?;
        if (order.value, order.replayed) != (1, is_retry) {
            return Err("the order was created twice".into());
        }
    }
    Ok(())
}
