mod in_transaction;
mod shared;

#[tokio::main]
async fn main() -> shared::Result<()> {
    let file = shared::SharedFile::open()?;
    let config = deadpool_sqlite::Config::new(file.path());
    let pool = config.create_pool(deadpool_sqlite::Runtime::Tokio1)?;
    let shop = pool.get().await?;
    shop.interact(in_transaction::create_order_twice)
        .await
        .map_err(|error| error.to_string())??;
    file.check().await
}
