mod in_transaction;
mod shared;

#[tokio::main]
async fn main() -> shared::Result<()> {
    let file = shared::SharedFile::open()?;
    let pool = r2d2::Pool::new(r2d2_sqlite::SqliteConnectionManager::file(file.path()))?;
    in_transaction::create_order_twice(&mut *pool.get()?)?;
    file.check().await
}
