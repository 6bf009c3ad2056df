mod in_transaction;
mod shared;

#[tokio::main]
async fn main() -> shared::Result<()> {
    let file = shared::SharedFile::open()?;
    let shop = tokio_rusqlite::Connection::open(file.path()).await?;
    let done =
        shop.call(|shop| Ok::<_, tokio_rusqlite::Error>(in_transaction::create_order_twice(shop)));
    done.await.map_err(|error| error.to_string())??;
    file.check().await
}
