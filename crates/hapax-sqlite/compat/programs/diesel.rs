mod shared;

use diesel::{Connection, RunQueryDsl, SqliteConnection};

#[tokio::main]
async fn main() -> shared::Result<()> {
    let file = shared::SharedFile::open()?;
    let mut shop = SqliteConnection::establish(&file.path())?;
    diesel::sql_query(shared::CREATE).execute(&mut shop)?;
    shop.immediate_transaction(|shop| {
        for sql in shared::TRANSACTION {
            diesel::sql_query(sql).execute(shop)?;
        }
        Ok::<_, diesel::result::Error>(())
    })?;
    file.check().await
}
