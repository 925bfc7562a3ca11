//! The headers of a 0-9-1 message in their column: which there are, under which keys.
//!
//! Heads are encoded as a publisher does and read back from the column. Rule: docs/reference/columns.md, "Headers".

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use weft_columns::{Builder, Column, Constants, Row};
use weft_wire::amqp091::properties::Properties;
use weft_wire::amqp091::table::{Table, TableWriter, Value};

fn read(write: impl Fn(&mut TableWriter<'_>)) -> RecordBatch {
    let mut table = Vec::new();
    TableWriter::write(&mut table, write);
    let mut head = Vec::new();
    Properties { headers: Some(Table::trusted(&table[4..])), ..Properties::default() }.encode(&mut head);
    let mut builder = Builder::new(&[Column::Headers], Constants::default());
    builder.push(&Row { head: &head, ..Row::default() });
    builder.finish().expect("a batch")
}

#[test]
fn a_key_that_is_no_text_is_repaired() {
    let batch = read(|table| {
        table.value(b"a\xff", Value::LongString(b"text"));
        table.value(b"\xfe", Value::I8(1));
    });
    let keys = batch.column(0).as_map().keys();
    let keys: Vec<_> = keys.as_string::<i32>().iter().flatten().collect();
    assert_eq!(keys, ["a\u{fffd}", "\u{fffd}"]);
}

#[test]
fn where_there_are_none_they_are_null() {
    let trace: fn(&mut TableWriter<'_>) = |table| {
        table.array(b"x-weft-trace", |nodes| nodes.value(Value::LongString(b"edge")));
    };
    for write in [|_: &mut TableWriter<'_>| {}, trace] {
        assert!(read(write).column(0).is_null(0));
    }
}
