mod in_transaction;
mod shared;

#[tokio::main]
async fn main() -> shared::Result<()> {
    let file = shared::SharedFile::open()?;
    let mut shop = rusqlite::Connection::open(file.path())?;
    in_transaction::create_order_twice(&mut shop)?;
    file.check().await
}
