//! Tasks that call into the reactor that polls them: its end, and turns of it.

#[path = "../../bdev/tests/common/run.rs"]
mod run;

use run::reactor;
use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

#[test]
fn a_task_that_closes_its_reactor_goes_on_to_the_end_of_its_poll_and_is_dropped_once() {
    let (reactor, held) = (reactor(), Rc::new(()));
    let (inner, mine, other) = (reactor.clone(), held.clone(), held.clone());
    reactor.spawn(async move {
        let _other = other;
        std::future::pending::<()>().await;
    });
    let seen = reactor.block_on(async move {
        inner.yield_now().await;
        inner.close();
        // The other task is gone, this one is not.
        Rc::strong_count(&mine)
    });
    assert_eq!((seen, Rc::strong_count(&held)), (2, 1));
    reactor.spawn(async { panic!("it was closed") });
    reactor.turn();
    assert_eq!((reactor.live_tasks(), Rc::strong_count(&reactor)), (0, 1));
}

#[test]
fn what_waits_on_after_closing_its_reactor_is_dropped_when_its_poll_ends() {
    for is_eager in [false, true] {
        let (reactor, held) = (reactor(), Rc::new(()));
        let (inner, mine) = (reactor.clone(), held.clone());
        let task = async move {
            inner.close();
            assert_eq!(Rc::strong_count(&mine), 2);
            std::future::pending::<()>().await;
        };
        if is_eager {
            reactor.spawn_eager(task)
        } else {
            reactor.spawn(task)
        }
        reactor.turn();
        assert_eq!((Rc::strong_count(&held), Rc::strong_count(&reactor)), (1, 1), "eager: {is_eager}");
    }
}

#[test]
#[should_panic(expected = "closed before")]
fn nobody_waits_for_a_future_whose_reactor_was_closed() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        inner.close();
        inner.yield_now().await;
    });
}

#[test]
fn a_task_is_not_polled_by_a_turn_that_it_takes_itself_but_after_it() {
    let reactor = reactor();
    let (inner, is_inside, polls) = (reactor.clone(), Cell::new(false), Rc::new(Cell::new(0)));
    let counted = polls.clone();
    reactor.block_on(poll_fn(move |cx| {
        assert!(!is_inside.replace(true), "a poll inside of a poll");
        counted.set(counted.get() + 1);
        cx.waker().wake_by_ref();
        (0..3).for_each(|_| _ = inner.turn());
        is_inside.set(false);
        if counted.get() < 3 { Poll::Pending } else { Poll::Ready(()) }
    }));
    assert_eq!(polls.get(), 3);
}
