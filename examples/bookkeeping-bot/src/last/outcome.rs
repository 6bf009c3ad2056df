use hapax::StoreError;
use hapax::document::DocumentError;

use crate::entry::InvalidEntry;

/// What became of an edit or a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is stored.
    Done,
    /// There is nothing that could be edited.
    Missing,
    /// Somebody else changed it between reading and writing. Nothing was stored, and nothing is tried
    /// again: the user has to look first.
    Changed,
    /// It was there when it was read, and gone when it was to be written.
    Expired,
    /// The store refused to write (it is full, or takes no writes): nothing was stored.
    NotStored,
    /// The store cannot be reached or did not answer: it may or may not be stored.
    Uncertain,
    /// The store cannot be read now.
    Unreadable,
    /// What is stored is no entry.
    Corrupt,
    /// The change breaks a rule; nothing was stored.
    Refused(InvalidEntry),
}

impl Outcome {
    /// What the library says.
    pub fn message(&self) -> String {
        let text = match self {
            Self::Done => "修改成功",
            Self::Missing => "無可修改的交易記錄",
            Self::Changed => "交易已變更，請重新操作",
            Self::Expired => "交易已過期（1 小時限制）",
            Self::NotStored | Self::Uncertain => "儲存失敗，請稍後再試",
            Self::Unreadable => "系統暫時無法讀取交易記錄，請稍後再試",
            Self::Corrupt => "資料格式錯誤，請重新記帳",
            Self::Refused(error) => return error.to_string(),
        };
        text.into()
    }

    /// What the user is told.
    pub fn text(&self) -> String {
        match self {
            Self::Missing => "目前沒有可修改的交易記錄（交易記錄會在 1 小時後自動清除）".into(),
            Self::Uncertain => "系統暫時無法儲存變更，請稍後再試".into(),
            Self::Refused(error) => format!("無法修改：{error}"),
            _ => self.message(),
        }
    }

    /// Why nothing was read.
    pub(crate) fn of_reading(error: &DocumentError) -> Self {
        if matches!(error, DocumentError::Corrupt(_)) { Self::Corrupt } else { Self::Unreadable }
    }

    /// Why nothing was written, or may not have been. A conflict is the caller's to explain.
    pub(super) fn of_writing(error: &DocumentError) -> Self {
        match error {
            DocumentError::Conflict => Self::Changed,
            DocumentError::Store(StoreError::Unavailable { .. } | StoreError::Timeout { .. }) => {
                Self::Uncertain
            }
            _ => Self::NotStored,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_texts_are_those_of_the_original_bot_letter_for_letter() {
        let said = |outcome: Outcome| (outcome.message(), outcome.text());
        let same = |text: &str| (text.to_owned(), text.to_owned());
        assert_eq!(said(Outcome::Done), same("修改成功"));
        assert_eq!(
            said(Outcome::Missing),
            (
                "無可修改的交易記錄".to_owned(),
                "目前沒有可修改的交易記錄（交易記錄會在 1 小時後自動清除）".to_owned()
            )
        );
        assert_eq!(said(Outcome::Changed), same("交易已變更，請重新操作"));
        assert_eq!(said(Outcome::Expired), same("交易已過期（1 小時限制）"));
        assert_eq!(said(Outcome::NotStored), same("儲存失敗，請稍後再試"));
        assert_eq!(
            said(Outcome::Uncertain),
            ("儲存失敗，請稍後再試".to_owned(), "系統暫時無法儲存變更，請稍後再試".to_owned())
        );
        assert_eq!(said(Outcome::Unreadable), same("系統暫時無法讀取交易記錄，請稍後再試"));
        assert_eq!(said(Outcome::Corrupt), same("資料格式錯誤，請重新記帳"));
    }

    #[test]
    fn a_store_that_refuses_is_told_from_one_that_does_not_answer() {
        let writing = |error| Outcome::of_writing(&DocumentError::Store(error));
        let reason = String::new;
        assert_eq!(writing(StoreError::Full { reason: reason() }), Outcome::NotStored);
        assert_eq!(writing(StoreError::ReadOnly { reason: reason() }), Outcome::NotStored);
        assert_eq!(writing(StoreError::Timeout { timeout: Duration::ZERO }), Outcome::Uncertain);
        let away = StoreError::Unavailable { reason: reason(), source: None };
        assert_eq!(writing(away), Outcome::Uncertain);
        let too_large = DocumentError::TooLarge { limit: 1 };
        assert_eq!(Outcome::of_writing(&too_large), Outcome::NotStored);
    }
}
