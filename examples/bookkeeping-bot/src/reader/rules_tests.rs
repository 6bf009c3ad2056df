use super::*;
use crate::moment::LocalTime;

async fn read(text: &str) -> Result<Intent, ReadError> {
    RuleReader.read(text, LocalTime::default().sent(Some(1_764_397_800_000))).await
}

async fn booked(text: &str) -> Vec<BookkeepingEntry> {
    match read(text).await {
        Ok(Intent::Book(entries)) => entries,
        other => panic!("{text}: {other:?}"),
    }
}

fn edited(field: &str, value: &str) -> Result<Intent, ReadError> {
    Ok(Intent::Edit(Changes::default().with(field, value)))
}

#[tokio::test]
async fn an_item_an_amount_and_a_payment_are_an_entry() {
    let lunch = &booked("午餐 100 信用卡").await[0];
    assert_eq!(lunch, &BookkeepingEntry::example());
    for text in [
        "午餐 100元 信用卡",
        "午餐 NT$100 信用卡",
        "午餐100 信用卡",
        "午餐　１００　信用卡",
        "午餐100元 信用卡",
    ] {
        assert_eq!(&booked(text).await[0], lunch, "{text}");
    }
    let egg = &booked("茶葉蛋🥚 1,234.5").await[0];
    assert_eq!((egg.item.as_str(), egg.amount, egg.payment.as_str()), ("茶葉蛋🥚", 1234.5, "現金"));
    assert_eq!(booked("蛋 0").await[0].amount, 0.0);
    assert_eq!(booked("同事的便當 90 代墊").await[0].advance, "代墊");
    assert_eq!(booked("計程車 250").await[0].category, "交通");
    assert_eq!(booked("燈泡 250").await[0].category, "其他");
}

#[tokio::test]
async fn several_entries_in_one_message_are_booked_together_or_not_at_all() {
    let two = booked("早餐 50、咖啡 80").await;
    assert_eq!((two[0].item.as_str(), two[0].amount), ("早餐", 50.0));
    assert_eq!((two[1].item.as_str(), two[1].amount), ("咖啡", 80.0));
    assert_eq!(booked("早餐 50,咖啡 80\n午餐 1,000").await.len(), 3);
    assert_eq!(read("早餐 50、咖啡").await, Ok(Intent::Other));
    assert_eq!(booked(&"蛋 1、".repeat(MAX_ENTRIES)).await.len(), MAX_ENTRIES);
    assert_eq!(read(&"蛋 1、".repeat(MAX_ENTRIES + 1)).await, Ok(Intent::Other));
}

#[tokio::test]
async fn foreign_money_needs_its_rate() {
    let coffee = &booked("咖啡 5 usd 32.5 信用卡").await[0];
    assert_eq!((coffee.currency.as_str(), coffee.amount, coffee.rate), ("USD", 5.0, 32.5));
    assert_eq!(coffee.payment, "信用卡");
    let Err(ReadError::Invalid(error)) = read("咖啡 5 USD").await else {
        panic!("a rate is missing")
    };
    assert_eq!(error.field, "匯率");
}

#[tokio::test]
async fn what_breaks_a_rule_is_refused_by_name() {
    for (text, field) in [
        ("午餐 -100", "原幣金額"),
        ("午餐 1.2.3", "原幣金額"),
        ("咖啡 5 USD 0", "匯率"),
        ("早餐 50、午餐 -1", "原幣金額"),
    ] {
        let Err(ReadError::Invalid(error)) = read(text).await else { panic!("{text}") };
        assert_eq!(error.field, field, "{text}");
    }
    let long = format!("{} 5", "蛋".repeat(101));
    assert!(matches!(read(&long).await, Err(ReadError::Invalid(error)) if error.field == "品項"));
}

#[tokio::test]
async fn edits_name_a_field_and_its_value() {
    for text in [
        "改金額 120",
        "修改金額 120",
        "改原幣金額 120",
        "改金額120",
        "金額改成 120",
        "把金額改成120元",
        "改 金額 120",
        "更改金額：120",
    ] {
        assert_eq!(read(text).await, edited("原幣金額", "120"), "{text}");
    }
    assert_eq!(read("修改品項 工作午餐").await, edited("品項", "工作午餐"));
    assert_eq!(read("把分類改成 交通").await, edited("分類", "交通"));
    assert_eq!(read("改代墊狀態 需支付").await, edited("代墊狀態", "需支付"));
    assert_eq!(read("改幣別 usd").await, edited("原幣別", "USD"));
    assert_eq!(read("改附註 老闆 請客").await, edited("附註", "老闆 請客"));
    assert_eq!(read("改金額 -5").await, edited("原幣金額", "-5"));
    assert_eq!(read("改品項").await, edited("品項", ""));
    assert_eq!(read("改顏色 紅").await, edited("顏色", "紅"));
    assert_eq!(read("把顏色改成 紅").await, edited("顏色", "紅"));
    assert_eq!(read("改交易ID 20251129-143000").await, edited("交易ID", "20251129-143000"));
    assert_eq!(read("改附註 好吃，便宜").await, edited("附註", "好吃，便宜"));
    let both = Changes::default().with("原幣金額", "120").with("品項", "晚餐");
    assert_eq!(read("改金額 120、改品項 晚餐").await, Ok(Intent::Edit(both)));
}

#[tokio::test]
async fn the_rest_is_shown_deleted_or_not_understood() {
    assert_eq!(read("刪除").await, Ok(Intent::Delete));
    assert_eq!(read(" 刪除 ").await, Ok(Intent::Delete));
    assert_eq!(read("上一筆").await, Ok(Intent::Show));
    assert_eq!(read("顯示").await, Ok(Intent::Show));
    for text in ["", "你好", "100", "、、", "刪除 100 筆資料吧", "今天好熱🥚", "改", "-"]
    {
        let other = read(text).await;
        let harmless = matches!(&other, Ok(Intent::Other | Intent::Book(_)));
        assert!(harmless, "{text}: {other:?}");
    }
    assert_eq!(read("你好").await, Ok(Intent::Other));
    assert_eq!(read("改").await, Ok(Intent::Other));
}
