//! What components keep on a reactor: values that cannot leave its thread (an open file, a channel, their part of something
//! that spans reactors), found by messages that name them.
//!
//! A value goes by its type and a number. The number comes from here, or from a component that keeps one value of that type
//! under the same number on every reactor; no type is used in both ways.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

struct Entry {
    /// Order of keeping.
    order: u64,
    value: Rc<dyn Any>,
}

#[derive(Default)]
pub(crate) struct Keep {
    entries: RefCell<BTreeMap<(TypeId, u64), Entry>>,
    next: Cell<u64>,
}

impl Keep {
    /// Keeps a value under a number of its own.
    pub(crate) fn add<T: 'static>(&self, value: Rc<T>) -> u64 {
        let number = self.next.get();
        self.insert(number, value);
        number
    }

    fn insert<T: 'static>(&self, number: u64, value: Rc<T>) {
        let order = self.next.replace(self.next.get() + 1);
        let before = self.entries.borrow_mut().insert((TypeId::of::<T>(), number), Entry { order, value });
        assert!(before.is_none(), "a {} is kept under number {number} already", std::any::type_name::<T>());
    }

    pub(crate) fn get<T: 'static>(&self, number: u64) -> Option<Rc<T>> {
        let entries = self.entries.borrow();
        let value = entries.get(&(TypeId::of::<T>(), number))?.value.clone();
        Some(value.downcast().expect("the key holds the type"))
    }

    pub(crate) fn get_or<T: 'static>(&self, number: u64, make: impl FnOnce() -> T) -> Rc<T> {
        self.get(number).unwrap_or_else(|| {
            let made = Rc::new(make());
            self.insert(number, made.clone());
            made
        })
    }

    pub(crate) fn remove<T: 'static>(&self, number: u64) {
        let entry = self.entries.borrow_mut().remove(&(TypeId::of::<T>(), number));
        // After the borrow: dropping a value may let go of another.
        drop(entry);
    }

    /// Drops everything, the latest first: what was kept later may use what was there before.
    pub(crate) fn clear(&self) {
        let mut entries: Vec<Entry> = self.entries.take().into_values().collect();
        entries.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.order));
        entries.into_iter().for_each(drop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells when it is dropped.
    struct Noted(u32, Rc<RefCell<Vec<u32>>>);

    impl Drop for Noted {
        fn drop(&mut self) {
            self.1.borrow_mut().push(self.0);
        }
    }

    #[test]
    fn values_are_found_by_type_and_number_until_they_are_let_go() {
        let keep = Keep::default();
        let first = keep.add(Rc::new("one"));
        let second = keep.add(Rc::new("two"));
        assert_eq!((keep.get::<&str>(first), keep.get::<&str>(second)), (Some(Rc::new("one")), Some(Rc::new("two"))));
        assert_eq!(keep.get::<u32>(first), None);
        keep.remove::<u32>(first);
        keep.remove::<&str>(first);
        assert_eq!((keep.get::<&str>(first), keep.get::<&str>(second)), (None, Some(Rc::new("two"))));
    }

    #[test]
    fn a_value_under_a_chosen_number_is_made_once() {
        let keep = Keep::default();
        assert_eq!(*keep.get_or(7, || 1u32), 1);
        assert_eq!(*keep.get_or(7, || 2u32), 1);
        assert_eq!(*keep.get_or(8, || 3u32), 3);
        keep.remove::<u32>(7);
        assert_eq!(*keep.get_or(7, || 4u32), 4);
    }

    #[test]
    fn the_latest_is_dropped_first() {
        let (keep, dropped) = (Keep::default(), Rc::default());
        for number in 0..3 {
            keep.add(Rc::new(Noted(number, Rc::clone(&dropped))));
        }
        keep.get_or(100, || (Noted(3, Rc::clone(&dropped)),));
        keep.clear();
        assert_eq!(*dropped.borrow(), [3, 2, 1, 0]);
    }
}
