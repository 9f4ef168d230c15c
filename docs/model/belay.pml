/*
 * Belay's protocol: one tenant, two plans of two steps, two engines, an operator, and a server that may lose any answer.
 *
 * Both plans write the same two cells of data, so that a wrong order or a wrong before-image shows in the data, and not
 * in the books alone. A transaction has two moments, its proof and its commit. All that it writes appears at the second,
 * and anything may happen in between. README.md says what is left out, and why that does no harm.
 */
#include "decisions.pml"

/* ---- The database ----------------------------------------------------------------------------------------------- */

mtype = { pending, applying, applied, rolling_back };                 /* statuses */
mtype = { undone, intent, done, undo_intent };                        /* journal entries; undone is also: no row yet */
mtype = { stay, claim_apply, claim_rollback, undo, succeed, fail };   /* moves of a plan */

typedef Plan {
  mtype status, claimed_from;
  byte fence;                   /* 0: none */
  bool has_seq;
  mtype journal[2];
  byte image[2];
  byte effect                   /* a ghost: the steps whose effects are really there, as bits */
};
typedef Group {                 /* a checkpoint, as data */
  byte plan, steps;             /* steps as bits */
  mtype entry;            /* what the journal will say of them */
  mtype move;
  bool release
};

#define NOBODY 0                /* engines 0 and 1 are the holders 1 and 2 */
#define PERSON 3

byte lock_fence, lock_holder;
bool lapsed;
Plan plan[2];
byte newest;                    /* which plan has the higher seq, if both have one */
byte data[2];                   /* 0: as the product left it; 1 and 2: written by plan 0 and 1 */
byte resource_fence[2];         /* the highest one that the outside resource has seen, for each cell */

byte fence[2];                  /* under which each engine believes to hold the lock; 0: none */
Group group[2];                 /* what each engine sends */
bool proving[2];                /* its transaction is open, and has locked the lock row */
bool orphan[2];                 /* its connection is gone, and its transaction not yet decided */
bool calling[2];                /* a call of its to the outside resource has not yet run out of time */

byte term, term_of[2];          /* ghosts: custody changes so far, and under which each engine works */

#define BIT(i)          (1 << (i))
#define BOTH            3
#define OTHER(x)        (1 - (x))
#define HOLDS(e)        (lock_holder == (e) + 1 && lock_fence == fence[e])
#define MAY_CHANGE      (!proving[0] && !proving[1] && term < TERMS)
/* Free, lapsed, or this engine's own, which it asks to replace. */
#define TAKEABLE(e)     (MAY_CHANGE && (lock_holder == NOBODY || lapsed || HOLDS(e)))

#define IN_FLIGHT(p)    (plan[p].status == applying || plan[p].status == rolling_back)
#define TOUCHED(p)      (plan[p].journal[0] != undone || plan[p].journal[1] != undone)
#define IN_PLACE(p,i)   (plan[p].journal[i] == done || (UNDO_DOUBT_IN_PLACE && plan[p].journal[i] == undo_intent))
#define IN_DOUBT(p,i)   (plan[p].journal[i] != undone && !IN_PLACE(p,i))
#define ALL_IN_PLACE(p) (IN_PLACE(p,0) && IN_PLACE(p,1))
#if PARTIAL_IS_SOME
#define PARTIAL(p)      (!IN_FLIGHT(p) && IN_PLACE(p,0) != IN_PLACE(p,1))
#else
#define PARTIAL(p)      ((plan[p].status == pending && TOUCHED(p)) || (plan[p].status == applied && !ALL_IN_PLACE(p)))
#endif

#define NEWER(p,q)      (plan[p].has_seq && (!plan[q].has_seq || newest == p))
#define UNBLOCKED(p)    (!IN_FLIGHT(OTHER(p)) && !(PARTIAL_BLOCKS && PARTIAL(OTHER(p))))
#define ON_TOP(p)       (!TOUCHED(OTHER(p)) || !plan[p].has_seq || !NEWER(OTHER(p), p))
#define MAY_APPLY(p)    (plan[p].status == pending && UNBLOCKED(p))
#define MAY_ROLLBACK(p) ((plan[p].status == applied || (plan[p].status == pending && TOUCHED(p))) && ON_TOP(p) && UNBLOCKED(p))

/* ---- What must be true ------------------------------------------------------------------------------------------ */

/* What the journal says of a cell: the value of the newest plan whose step is in place. */
#define FOLD(i) (IN_PLACE(0,i) && !(IN_PLACE(1,i) && NEWER(1,0)) -> 1 : (IN_PLACE(1,i) -> 2 : 0))
#define SAYS(p) (plan[p].status == applied -> BOTH : 0)
#define STRANDED(p) (IN_FLIGHT(p) && plan[p].fence != lock_fence && lock_fence != 0)    /* 0: no row to tell by */
#define SUCCEEDED(p, down) (plan[p].effect == (down -> 0 : BOTH) && plan[p].status == (down -> pending : applied))

/* A comment beside an assertion names the guarantee that fails with it. */
inline check_custody(e) {
  assert(ONLY_DATA || term_of[e] == term)                 /* G1: only the present term writes */
}
inline check_cell(i) {
  assert(IN_DOUBT(0,i) || IN_DOUBT(1,i) || data[i] == FOLD(i)) /* G6: data are the fold of the journal */
}
inline check_plan(p) {
  assert(IN_FLIGHT(p) || PARTIAL(p) || plan[p].effect == SAYS(p)); /* G3: what does not look partial is what its status says */
  assert(ONLY_DATA || !STRANDED(p))                       /* G2: a change of custody leaves no plan in flight */
}
inline check() {
  check_cell(0); check_cell(1); check_plan(0); check_plan(1);
  assert(ONLY_DATA || !IN_FLIGHT(0) || !IN_FLIGHT(1))     /* G1: one plan in flight */
}
inline check_report(p, down) {
  assert(ONLY_DATA || SUCCEEDED(p, down))                 /* G7: what was acknowledged is so */
}
inline check_decided(e) {
  assert(ONLY_DATA || !orphan[e])                         /* G7: what is looked up has been decided */
}
inline check_once(p, i, is_there) {
  assert(((plan[p].effect & BIT(i)) != 0) == is_there)    /* G4: exactly once */
}
inline check_renewal(e) {
  assert(ONLY_DATA || (term_of[e] == term && HOLDS(e)))   /* G2: nobody keeps another's lease from lapsing */
}

/* ---- Acquire, recover, claim ------------------------------------------------------------------------------------ */

inline give_seq(p) { if :: !plan[p].has_seq -> plan[p].has_seq = true; newest = p :: else fi }
inline drop_seq(p) { plan[p].has_seq = false; newest = (plan[OTHER(p)].has_seq -> OTHER(p) : 0) }

inline change_custody(who) { lock_fence++; term++; lock_holder = who; lapsed = false }
inline free_lock() {
  lock_holder = NOBODY; lapsed = false;
  if :: RELEASE_DELETES -> lock_fence = 0 :: else fi
}
inline come_to_rest(p, status_after) {
  plan[p].status = status_after; plan[p].claimed_from = pending; plan[p].fence = 0;
  if :: plan[p].status == pending && !TOUCHED(p) -> drop_seq(p)
     :: plan[p].status == applied && SEQ_AT_FINISH -> give_seq(p)
     :: else
  fi
}
inline recover(p) {
  if :: IN_FLIGHT(p) -> come_to_rest(p, plan[p].claimed_from); printf("plan %d recovered: %e\n", p, plan[p].status) :: else fi
}
inline recover_all() { recover(0); recover(1) }
inline put_in_flight(e, p) { plan[p].fence = fence[e]; if :: SEQ_AT_FINISH :: else -> give_seq(p) fi }
inline claim(e, p, down) {
  if :: !down && MAY_APPLY(p) -> plan[p].status = applying; put_in_flight(e, p)
     :: down && MAY_ROLLBACK(p) -> plan[p].claimed_from = plan[p].status; plan[p].status = rolling_back; put_in_flight(e, p)
     :: else
  fi
}
inline take(e) {
  change_custody(e + 1); fence[e] = lock_fence; term_of[e] = term;
  printf("engine %d takes the lock: fence %d, term %d\n", e, lock_fence, term)
}

/* ---- A checkpoint ----------------------------------------------------------------------------------------------- */

#define HOW(e) (group[e].move == succeed || group[e].move == fail -> FINISH_PROOF : \
               (group[e].move == claim_apply || group[e].move == claim_rollback -> CLAIM_PROOF : PROOF))

/* Goes to lost if the proof raises. */
inline prove(e) {
  if :: HOW(e) != NO_PROOF && HOLDS(e) -> proving[e] = (HOW(e) != PLAIN_READ)
     :: HOW(e) != NO_PROOF && HOW(e) != NOT_RAISED && !HOLDS(e) -> goto lost
     :: HOW(e) == NO_PROOF || (HOW(e) == NOT_RAISED && !HOLDS(e))
  fi
}
inline set_effect(p, i)   { data[i] = p + 1; plan[p].effect = plan[p].effect | BIT(i) }
inline unset_effect(p, i) { data[i] = plan[p].image[i]; plan[p].effect = plan[p].effect & (BOTH - BIT(i)) }

inline write_step(p, i, entry_after) {
  if :: !(EXTERNAL & BIT(i)) && entry_after == done -> check_once(p, i, false); plan[p].image[i] = data[i]; set_effect(p, i)
     :: !(EXTERNAL & BIT(i)) && entry_after == undone -> check_once(p, i, true); unset_effect(p, i)
     :: (EXTERNAL & BIT(i)) && entry_after == intent && (plan[p].journal[i] == undone || IMAGE_AGAIN) -> plan[p].image[i] = data[i]
     :: else
  fi;
  plan[p].journal[i] = entry_after;
  if :: entry_after == undone -> plan[p].image[i] = 0 :: else fi
}
inline write_group(e, p) {
  if :: group[e].steps & BIT(0) -> write_step(p, 0, group[e].entry) :: else fi;
  if :: group[e].steps & BIT(1) -> write_step(p, 1, group[e].entry) :: else fi;
  if :: group[e].move == stay
     :: group[e].move == claim_apply -> claim(e, p, false)
     :: group[e].move == claim_rollback -> claim(e, p, true)
     :: group[e].move == undo -> plan[p].status = rolling_back
     :: group[e].move == succeed -> come_to_rest(p, (plan[p].status == applying -> applied : pending))
     :: group[e].move == fail -> come_to_rest(p, plan[p].claimed_from)
  fi
}
inline commit(e) {
  d_step {
    printf("engine %d commits: plan %d, steps %d %e, move %e, release %d\n",
      e, group[e].plan, group[e].steps, group[e].entry, group[e].move, group[e].release);
    check_custody(e);
    if :: group[e].plan == 0 -> write_group(e, 0) :: else -> write_group(e, 1) fi;
    if :: group[e].release && HOLDS(e) -> free_lock() :: else fi;
    proving[e] = false;
    check()
  }
}

/* ---- An engine: one apply or rollback after another ------------------------------------------------------------- */

#define LEFT(p, down)    ((down && TOUCHED(p)) || (!down && !ALL_IN_PLACE(p)))
/* The newest step that is in place or in doubt, or the oldest that is not in place. */
#define NEXT(p, down)    (down -> (plan[p].journal[1] != undone -> 1 : 0) : (IN_PLACE(p,0) -> 1 : 0))
#define IS_LAST(p, down) ((down && (plan[p].journal[0] == undone || plan[p].journal[1] == undone)) \
                         || (!down && (IN_PLACE(p,0) || IN_PLACE(p,1))))
#define OUTCOME(down)    (down -> undone : done)
/* Committed by this engine, in this term. */
#define CLAIMED(e, p)    (IN_FLIGHT(p) && plan[p].fence == fence[e])
#define ANNOUNCED(e)     (group[e].entry == intent || group[e].entry == undo_intent)
/* What the next acquire recovers, if it was committed. */
#define NOT_LOOKED_UP(e) (group[e].move == claim_apply || group[e].move == claim_rollback || group[e].move == fail)
/* The plan rests where a successful run leaves it. */
#define ENDED(p, down)   (!PARTIAL(p) && ((down && plan[p].status == pending) || (!down && plan[p].status == applied)))

inline choose(p, down) { if :: p = 0 :: PLANS == 2 -> p = 1 fi; if :: down = false :: down = true fi }

inline pack(e, p, its_steps, its_entry, its_move, its_release) {
  group[e].plan = p; group[e].steps = its_steps; group[e].entry = its_entry;
  group[e].move = its_move; group[e].release = its_release
}
/* The last steps of a plan carry the move that ends the claim, and that one the release, unless the lock is kept. */
inline pack_steps(e, p, its_steps, its_entry, last) {
  if :: last -> if :: pack(e, p, its_steps, its_entry, succeed, true) :: pack(e, p, its_steps, its_entry, succeed, false) fi
     :: !(last) -> pack(e, p, its_steps, its_entry, stay, false)
  fi
}
inline acknowledge(e, p, down) {
  if :: group[e].move == succeed -> check_report(p, down)
     :: else -> calling[e] = ANNOUNCED(e)       /* its time runs from here, whether the call is made or not */
  fi;
  goto answered
}
/* Goes to lost if the resource has seen a higher fence. */
inline show_fence(e, i) { if :: resource_fence[i] > fence[e] -> goto lost :: else -> resource_fence[i] = fence[e] fi }

proctype Engine(byte e) {
  byte p, i;
  bool down;                            /* rolls back */

end_idle:
  atomic {                              /* acquire, recover and claim are one transaction */
    TAKEABLE(e) -> choose(p, down);
    d_step { take(e); if :: RECOVER_APART :: else -> recover_all(); claim(e, p, down); check() fi };
    if :: RECOVER_APART
       :: !RECOVER_APART && CLAIMED(e, p) -> goto work
       :: !RECOVER_APART && !CLAIMED(e, p) -> goto release
       :: goto over
    fi
  };
  d_step { check_custody(e); recover_all(); claim(e, p, down); check() };
  if :: CLAIMED(e, p) :: !CLAIMED(e, p) -> goto release fi;

work:                                   /* the plan is in flight under this engine's fence */
  atomic {
    i = NEXT(p, down);
    if
    :: !LEFT(p, down) -> pack_steps(e, p, 0, undone, true)
    :: LEFT(p, down) && (EXTERNAL & BIT(i)) -> goto external
    :: LEFT(p, down) && !(EXTERNAL & BIT(i)) -> pack_steps(e, p, BIT(i), OUTCOME(down), IS_LAST(p, down))
    :: GROUPS && !EXTERNAL && LEFT(p, down) && !IS_LAST(p, down) -> pack_steps(e, p, BOTH, OUTCOME(down), true)
    :: i = 0; goto fails
    :: goto over                        /* the process dies; one that stalls is one that does not run */
    fi;
    i = 0; prove(e)
  };

sent:                                   /* proved, and not yet committed */
  if
  :: atomic { commit(e); if :: acknowledge(e, p, down) :: goto unknown fi }
  :: atomic {                           /* the server ended it, and said so */
       proving[e] = false; if :: CLAIMED(e, p) -> goto work :: else -> goto release fi }
  :: atomic { orphan[e] = true; goto unknown }
  fi;

answered:
  atomic {
    if
    :: group[e].move == succeed && group[e].release -> goto over
    :: group[e].move == succeed && !group[e].release -> goto between
    :: group[e].move == fail -> goto over
    :: group[e].move == undo -> down = true; goto work
    :: (group[e].move == claim_apply || group[e].move == claim_rollback) && CLAIMED(e, p) -> goto work
    :: (group[e].move == claim_apply || group[e].move == claim_rollback) && !CLAIMED(e, p) -> goto release
    :: group[e].move == stay && ANNOUNCED(e) -> goto effect
    :: group[e].move == stay && !ANNOUNCED(e) -> goto work
    fi
  };

fails:                                  /* a step failed: turn back under the same lease, or give up */
  atomic {
    if :: !down && TOUCHED(p) -> pack(e, p, 0, undone, undo, false)
       :: pack(e, p, 0, undone, fail, true)
    fi;
    prove(e); goto sent
  };

between:                                /* the lock is kept, and no plan is in flight */
  atomic {
    choose(p, down); pack(e, p, 0, undone, (down -> claim_rollback : claim_apply), false);
    prove(e); goto sent
  };

external:                               /* step i, in three: intent, effect, outcome */
  if :: !WAIT_OUT || !IN_DOUBT(p,i) || !calling[OTHER(e)] fi;
  atomic {
    if
    :: INSPECT && IN_DOUBT(p,i) ->
       if :: INSPECT == WITH_FENCE -> show_fence(e, i) :: else fi;
       if :: (plan[p].effect & BIT(i)) == (down -> 0 : BIT(i)) -> goto outcome :: else fi
    :: !INSPECT || !IN_DOUBT(p,i)
    fi;
    pack(e, p, BIT(i), (down -> undo_intent : intent), stay, false);
    prove(e); goto sent
  };
effect:
  atomic {
    if :: RESOURCE_FENCES -> show_fence(e, i) :: else fi;
    printf("engine %d reaches the resource: plan %d, step %d, down %d\n", e, p, i, down);
    d_step { if :: down -> unset_effect(p, i) :: else -> set_effect(p, i) fi; calling[e] = false; check() };
    if :: goto outcome :: goto over fi
  };
outcome:
  atomic { pack_steps(e, p, BIT(i), OUTCOME(down), IS_LAST(p, down)); i = 0; prove(e); goto sent };

unknown:                                /* was it committed? */
  atomic {
    printf("engine %d does not know\n", e);
    if
    :: UNKNOWN == RETRY && !orphan[e] -> prove(e); goto sent
    :: UNKNOWN == BELIEVE && !orphan[e] -> acknowledge(e, p, down)
    :: NOT_LOOKED_UP(e) -> goto release
    :: UNKNOWN == LOOK && !NOT_LOOKED_UP(e) && TAKEABLE(e) && !(ONLY_DATA && orphan[e]) ->
       check_decided(e);
       if :: group[e].move == undo -> down = true :: else fi;
       d_step { take(e); recover_all(); claim(e, p, down); check() };
       if :: CLAIMED(e, p) -> goto work :: else fi;
       if :: ENDED(p, down) -> check_report(p, down) :: else fi;
       goto release
    :: UNKNOWN == LOOK && !NOT_LOOKED_UP(e) && !HOLDS(e) && lock_holder != NOBODY -> /* someone else has it, and reading is enough */
       check_decided(e);
       if :: ENDED(p, down) -> check_report(p, down) :: else fi;
       goto over
    :: goto over
    fi
  };

release:
  atomic { if :: HOLDS(e) -> free_lock() :: else fi };
lost:
over:                                   /* finished, or dead; another operation begins */
  atomic {
    !orphan[e] -> fence[e] = 0; term_of[e] = 0; calling[e] = false; pack(e, 0, 0, undone, stay, false);
    p = 0; i = 0; down = false; goto end_idle
  }
}

/* ---- Everyone else ---------------------------------------------------------------------------------------------- */

/* Decides the transaction of a connection that is gone. A release that finds no row raises. */
#define MAY_COMMIT(e) (orphan[e] && (!group[e].release || HOLDS(e)))
proctype Server() {
end:
  do
  :: atomic { MAY_COMMIT(0) -> orphan[0] = false; commit(0) }
  :: atomic { MAY_COMMIT(1) -> orphan[1] = false; commit(1) }
  :: d_step { orphan[0] -> orphan[0] = false; proving[0] = false }
  :: d_step { orphan[1] -> orphan[1] = false; proving[1] = false }
  od
}

/* Lets a lease lapse at any moment, and renews it for whoever believes to hold it. A renewal does not wait for a proof. */
#define RENEWABLE(e) (lapsed && fence[e] != 0 && (HOLDS(e) || !RENEWAL_COMPARES))
inline renew(e) { printf("engine %d renews\n", e); check_renewal(e); lapsed = false }
proctype Time() {
end:
  do
  :: d_step { !lapsed && (lock_holder == 1 || lock_holder == 2) -> printf("the lease lapses\n"); lapsed = true }
  :: d_step { RENEWABLE(0) -> renew(0) }
  :: d_step { RENEWABLE(1) -> renew(1) }
  od
}

/* Breaks a lock, whoever has it, or holds it until it is released. */
proctype Operator() {
end:
  do
  :: d_step { MAY_CHANGE && lock_holder != NOBODY -> printf("the lock is broken\n"); change_custody(PERSON);
              if :: BREAK_RECOVERS -> recover_all() :: else fi; free_lock(); check() }
  :: d_step { MAY_CHANGE && (lock_holder == NOBODY || lapsed) -> printf("a person holds the lock\n"); change_custody(PERSON);
              recover_all(); check() }
  :: d_step { lock_holder == PERSON -> free_lock() }
  od
}

inline begin(p) {
  plan[p].status = pending; plan[p].claimed_from = pending; plan[p].journal[0] = undone; plan[p].journal[1] = undone;
  pack(p, 0, 0, undone, stay, false)            /* there are as many engines as plans */
}
init {
  d_step { begin(0); begin(1) };
  atomic { run Engine(0); run Engine(1); run Server(); run Time(); if :: OPERATOR -> run Operator() :: else fi }
}
