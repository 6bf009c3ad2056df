mod shared;

use sea_orm::{ConnectionTrait, TransactionTrait};

#[tokio::main]
async fn main() -> shared::Result<()> {
    let file = shared::SharedFile::open()?;
    let shop = sea_orm::Database::connect(format!("sqlite://{}", file.path())).await?;
    shop.execute_unprepared(shared::CREATE).await?;
    let tx = shop.begin().await?;
    for sql in shared::TRANSACTION {
        tx.execute_unprepared(sql).await?;
    }
    tx.commit().await?;
    file.check().await
}
