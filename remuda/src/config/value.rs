//! One shape for what people write, whether it comes from TOML, from JSON or from `key=value` words of a command line.

use std::fmt;
use std::ops::Range;

/// Byte range in the source text.
pub type Span = Range<usize>;

/// Something together with where it was written; the span is `None` for values that came over RPC.
#[derive(Clone)]
pub struct Located<T> {
    /// The thing.
    pub value: T,
    /// Where it stands in the file.
    pub span: Option<Span>,
}

/// Without its place: the same thing looks the same wherever it stands.
impl<T: fmt::Debug> fmt::Debug for Located<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// A value as written.
#[derive(Clone, Debug)]
pub struct Value {
    /// Where it stands in the file.
    pub span: Option<Span>,
    /// What it is.
    pub data: Data,
}

/// Keys and values in the order in which they were written.
pub type Table = Vec<(Located<String>, Value)>;

/// The value itself.
#[derive(Clone, Debug)]
pub enum Data {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Integer(i64),
    /// A fraction.
    Float(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Value>),
    /// A table.
    Table(Table),
    /// Something that no key takes: a date, JSON null, a number that does not fit.
    Other(&'static str),
}

impl Data {
    /// What it is called in messages.
    pub fn type_name(&self) -> &'static str {
        match self {
            Data::Flag(_) => "a boolean",
            Data::Integer(_) => "an integer",
            Data::Float(_) => "a fraction",
            Data::Text(_) => "a string",
            Data::List(_) => "a list",
            Data::Table(_) => "a table",
            Data::Other(name) => name,
        }
    }
}

/// A parsed TOML table, spans kept.
pub fn from_toml(table: &toml::de::DeTable<'_>) -> Table {
    let mut entries: Table = table
        .iter()
        .map(|(key, value)| {
            let name = Located { value: key.get_ref().to_string(), span: Some(key.span()) };
            (name, from_toml_value(value))
        })
        .collect();
    entries.sort_by_key(|(key, _)| key.span.as_ref().map(|span| span.start));
    entries
}

fn from_toml_value(value: &toml::Spanned<toml::de::DeValue<'_>>) -> Value {
    use toml::de::DeValue;
    let data = match value.get_ref() {
        DeValue::String(text) => Data::Text(text.to_string()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Data::Integer(number),
            Err(_) => Data::Other("a number that does not fit in 64 bits"),
        },
        DeValue::Float(number) => number.as_str().parse().map_or(Data::Other("a malformed number"), Data::Float),
        DeValue::Boolean(flag) => Data::Flag(*flag),
        DeValue::Datetime(_) => Data::Other("a date"),
        DeValue::Array(items) => Data::List(items.iter().map(from_toml_value).collect()),
        DeValue::Table(table) => Data::Table(from_toml(table)),
    };
    Value { span: Some(value.span()), data }
}

/// A JSON object, without spans.
pub fn from_json(object: &serde_json::Map<String, serde_json::Value>) -> Table {
    object.iter().map(|(key, value)| (Located { value: key.clone(), span: None }, from_json_value(value))).collect()
}

fn from_json_value(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    let data = match value {
        Json::Null => Data::Other("null"),
        Json::Bool(flag) => Data::Flag(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Data::Integer(number),
            (None, Some(number)) => Data::Float(number),
            _ => Data::Other("a number that does not fit in 64 bits"),
        },
        Json::String(text) => Data::Text(text.clone()),
        Json::Array(items) => Data::List(items.iter().map(from_json_value).collect()),
        Json::Object(object) => Data::Table(from_json(object)),
    };
    Value { span: None, data }
}
