//! Places, and the two buttons that a user can assign places to.

/// Longer names are cut, because names go into lists and onto buttons.
const LONGEST_NAME: usize = 60;

/// A named place on earth.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) latitude: f64,
    pub(crate) longitude: f64,
}

impl Place {
    /// `None` if the coordinates are out of range or the name is empty.
    pub(crate) fn new(name: &str, latitude: f64, longitude: f64) -> Option<Self> {
        let on_earth = (-90.0..=90.0).contains(&latitude) && (-180.0..=180.0).contains(&longitude);
        // A database may reject control characters, and line breaks would break up a list.
        let words: Vec<_> = name
            .split(|c: char| c.is_control() || c.is_whitespace())
            .filter(|w| !w.is_empty())
            .collect();
        let name: String = words.join(" ").chars().take(LONGEST_NAME).collect();
        (on_earth && !name.is_empty()).then_some(Self { name, latitude, longitude })
    }
}

/// The two places that have buttons of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    Home,
    Office,
}

impl Spot {
    pub(crate) const ALL: [Self; 2] = [Self::Home, Self::Office];

    /// The name used in postbacks and in the database.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::Office => "office",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|spot| spot.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_short_line_and_places_are_on_earth() {
        let long = "山".repeat(100);
        assert_eq!(Place::new(&long, 25.0, 121.0).unwrap().name.chars().count(), LONGEST_NAME);
        assert_eq!(Place::new(" 台\u{0}北\n 101 ", 25.0, 121.0).unwrap().name, "台 北 101");
        for (name, latitude, longitude) in [
            ("", 25.0, 121.0),
            ("\n", 25.0, 121.0),
            ("x", 90.1, 0.0),
            ("x", 0.0, -180.1),
            ("x", f64::NAN, 0.0),
            ("x", 0.0, f64::INFINITY),
        ] {
            assert_eq!(Place::new(name, latitude, longitude), None);
        }
    }
}
