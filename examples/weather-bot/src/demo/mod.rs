//! A conversation without an account or a network: the bot itself, a simulated LINE and a simulated
//! weather service with fixed data, all in this process on loopback.

mod stage;

use std::io::Write as _;

use anyhow::ensure;
use hapax_line::simulator::events;
use stage::{Stage, USER};

use crate::simulated_weather::Mood;
use crate::texts;

/// Plays the conversation, and fails on an unexpected answer.
pub(crate) async fn run() -> anyhow::Result<()> {
    note(
        "The bot, with a simulated LINE and a simulated weather service: fixed data, no network.",
    )?;
    let stage = Stage::set().await?;
    stage.plays("（加入好友）", events::follow(USER), 0).await?;
    stage.plays("台北", events::text(USER, "台北"), 1).await?;
    stage.plays("亞特蘭提斯", events::text(USER, "亞特蘭提斯"), 0).await?;
    stage.plays("設定住家 台北", events::text(USER, "設定住家 台北"), 0).await?;
    stage.plays("設定公司 新竹", events::text(USER, "設定公司 新竹"), 0).await?;
    let map = events::location(USER, "花蓮車站", 23.9933, 121.6011);
    stage.plays("（位置）花蓮車站", map, 1).await?;
    double_tap(&stage).await?;
    redelivery(&stage).await?;
    stage.plays("［最近查詢］", events::postback(USER, "action=recent_queries"), 0).await?;
    stage.plays("［設定］", events::postback(USER, "action=settings"), 0).await?;
    service_down(&stage).await?;
    stage.strike().await
}

/// Holds the forecast until the second tap is answered, so that the taps overlap without a sleep.
async fn double_tap(stage: &Stage) -> anyhow::Result<()> {
    note("\nA double tap in the rich menu, two webhooks at once:")?;
    let before = stage.lookups();
    stage.weather(Mood::Holding);
    let tap = || events::postback(USER, "action=weather&type=home");
    stage.send_both("［住家］", tap(), tap()).await?;
    let answer = stage.answer().await?;
    ensure!(answer == [hapax_line::BUSY_TEXT], "one of two taps is told to wait");
    stage.weather(Mood::Well);
    stage.answer().await?;
    stage.costs(before, 1)
}

async fn redelivery(stage: &Stage) -> anyhow::Result<()> {
    note("\nLINE delivers a tap twice, because it did not hear the first answer:")?;
    let tap = events::postback(USER, "action=weather&type=office");
    stage.plays("［公司］", tap.clone(), 1).await?;
    let before = stage.lookups();
    stage.send("［公司］ again", events::redelivered(&tap)).await?;
    note("     (no answer)")?;
    stage.costs(before, 0)
}

async fn service_down(stage: &Stage) -> anyhow::Result<()> {
    note("\nThe weather service is down:")?;
    stage.weather(Mood::Status(503));
    let before = stage.lookups();
    stage.send("［住家］", events::postback(USER, "action=weather&type=home")).await?;
    ensure!(stage.answer().await? == [texts::WEATHER_AWAY], "a friendly text");
    stage.weather(Mood::Well);
    stage.costs(before, 1)
}

fn note(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}
