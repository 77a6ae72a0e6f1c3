//! Names that must not be mixed up: node, zone, leaf, class. Cheap to clone, because plans and
//! trees over thousands of nodes copy them a lot.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

name! {
    /// Name of a Node object.
    NodeName
}
name! {
    /// One fat tree. A node without a zone label is in the zone with the empty name.
    Zone
}
name! {
    /// A leaf switch, unique inside its zone. A node without a leaf label is under the leaf with
    /// the empty name.
    Leaf
}
name! {
    /// A kind of node, for example `a100`. Jobs ask for exactly one.
    Class
}
