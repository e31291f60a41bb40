//! A value of any type in a recycled block: replies of other reactors wait in one without the allocator.

use crate::block;
use std::alloc::Layout;
use std::any::TypeId;
use std::ptr::NonNull;

/// A boxed value that knows its type. Stays on the thread that made it.
pub(crate) struct Parcel {
    block: NonNull<u8>,
    layout: Layout,
    type_id: TypeId,
    drop: unsafe fn(NonNull<u8>),
}

/// # Safety
/// `block` holds a live `T` that is not used again.
unsafe fn drop_raw<T>(block: NonNull<u8>) {
    // SAFETY: by the caller.
    unsafe { block.cast::<T>().drop_in_place() }
}

impl Parcel {
    pub(crate) fn new<T: 'static>(value: T) -> Parcel {
        let layout = Layout::new::<T>();
        let block = block::take(layout);
        // SAFETY: the block is large and aligned enough for T by its layout.
        unsafe { block.cast::<T>().write(value) };
        Parcel { block, layout, type_id: TypeId::of::<T>(), drop: drop_raw::<T> }
    }

    /// The value. Panics when it is not a `T`.
    pub(crate) fn open<T: 'static>(self) -> T {
        assert!(self.type_id == TypeId::of::<T>(), "the reply has the type of the call");
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the block holds a live T; ManuallyDrop leaves the reading to us, and the block is given back once.
        unsafe {
            let value = this.block.cast::<T>().read();
            block::give(this.block, this.layout);
            value
        }
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        // SAFETY: an unopened parcel holds its value and owns its block.
        unsafe {
            (self.drop)(self.block);
            block::give(self.block, self.layout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn gives_its_value_or_drops_it_once() {
        let value = Rc::new(7);
        assert_eq!(*Parcel::new(value.clone()).open::<Rc<i32>>(), 7);
        drop(Parcel::new(value.clone()));
        Parcel::new(()).open::<()>();
        assert_eq!(Rc::strong_count(&value), 1);
    }
}
