/*
 * Belay's protocol: one tenant, two plans of two steps, two engines, an operator, and a server that may lose any answer.
 *
 * Both plans write the same two cells of data, so that a wrong order or a wrong before-image shows in the data and not
 * only in the books. A transaction is two moments: its proof, and its commit, at which all its writes appear. Anything may
 * happen between. The lock row is the only row that is locked here: foreign keys, unique indexes and the guards on plan and
 * journal rows, which stand behind the proof in the databases, are left out, so that the proof has to do alone.
 *
 * A macro is a decision of the protocol; its default is what Belay does. ./run gives one of them another value and
 * expects to see the damage. README.md says what is left out and why.
 */

/* ---- What is explored ------------------------------------------------------------------------------------------- */

#ifndef TERMS
#define TERMS 4             /* custody changes at most so often */
#endif
#ifndef PLANS
#define PLANS 2
#endif
#ifndef OPERATOR
#define OPERATOR 1          /* somebody breaks locks, and holds them */
#endif
#ifndef GROUPS
#define GROUPS 0            /* a checkpoint may have both steps */
#endif
#ifndef EXTERNAL
#define EXTERNAL 0          /* steps that act outside the database, as bits */
#endif

/* ---- What is decided -------------------------------------------------------------------------------------------- */

#define NO_PROOF      0
#define PLAIN_READ    1     /* looks at the lock row, and does not lock it */
#define LOCKING       2     /* locks it against a change of its fence, or raises */
#define NOT_RAISED    3     /* locks it if it is there, and lets the statements behind it go on if not */
#ifndef PROOF
#define PROOF LOCKING       /* how a checkpoint begins */
#endif
#ifndef CLAIM_PROOF
#define CLAIM_PROOF PROOF   /* how a claim under a lock already held begins */
#endif
#ifndef FINISH_PROOF
#define FINISH_PROOF PROOF  /* how the checkpoint begins that ends a claim */
#endif
#ifndef RECOVER_APART
#define RECOVER_APART 0     /* recovery and claim in a transaction behind the one that acquires */
#endif
#ifndef BREAK_RECOVERS
#define BREAK_RECOVERS 1
#endif
#ifndef RELEASE_DELETES
#define RELEASE_DELETES 0   /* release deletes the lock row, and the next acquire starts its fence anew */
#endif
#ifndef RENEWAL_COMPARES
#define RENEWAL_COMPARES 1  /* a renewal demands its own holder and fence */
#endif
#ifndef PARTIAL_IS_SOME
#define PARTIAL_IS_SOME 0   /* partial: some steps in place but not all, whatever the status says */
#endif
#ifndef PARTIAL_BLOCKS
#define PARTIAL_BLOCKS 1    /* a partial plan keeps others of its tenant from being claimed */
#endif
#ifndef SEQ_AT_FINISH
#define SEQ_AT_FINISH 0     /* a plan gets its place in the order when it is applied, not at its first claim */
#endif
#define LOOK          0     /* acquire under a new fence, then read the journal */
#define RETRY         1     /* send it again */
#define BELIEVE       2     /* take it for committed */
#ifndef UNKNOWN
#define UNKNOWN LOOK        /* what to do about a commit whose answer is lost */
#endif
#ifndef WAIT_OUT
#define WAIT_OUT 1          /* before a step in doubt is touched, a former holder's call must have ended */
#endif
#ifndef RESOURCE_FENCES
#define RESOURCE_FENCES 0   /* the outside resource refuses a fence lower than one it has seen */
#endif
#define NO_INSPECT    0
#define FENCED        1     /* shows its fence to the resource */
#define UNFENCED      2
#ifndef INSPECT
#define INSPECT NO_INSPECT  /* how a step in doubt is looked up, if at all */
#endif
#ifndef IMAGE_AGAIN
#define IMAGE_AGAIN 0       /* the before-image is captured at each attempt, not once */
#endif
#ifndef UNDO_DOUBT_IN_PLACE
#define UNDO_DOUBT_IN_PLACE 0 /* a step whose undo is in doubt counts as in place */
#endif
#ifndef ASSERT_G1
#define ASSERT_G1 1         /* 0: say nothing when a stale term writes; wait for what it does to the data */
#endif

/* ---- The database ----------------------------------------------------------------------------------------------- */

mtype:status = { pending, applying, applied, rolling_back };
mtype:entry  = { undone, intent, done, undo_intent };     /* undone is also a step without a row */
mtype:move   = { stay, claim_apply, claim_rollback, undo, succeed, fail };

typedef Plan {
  mtype:status status, claimed_from;
  byte fence;               /* 0: none */
  bool has_seq;
  mtype:entry journal[2];
  byte image[2];
  byte effect               /* ghost: which steps really are in place, as bits */
};
typedef Group {             /* a checkpoint, as data */
  byte plan, steps;         /* steps as bits */
  mtype:entry entry;        /* what is written of them */
  mtype:move move;
  bool release
};

#define NOBODY  0           /* engines 0 and 1 hold as 1 and 2 */
#define PERSON  3

byte lock_fence, lock_holder; bool lapsed;
Plan plan[2];
byte newest;                /* which plan has the higher seq, if both have one */
byte data[2];               /* 0: as the product left it; 1, 2: written by plan 0, 1 */
byte resource_fence[2];     /* the highest one that the outside resource has seen */

byte fence[2];              /* what each engine believes to hold; 0: nothing */
Group group[2];             /* what each has sent, or is about to */
bool proving[2];            /* its transaction is open and has locked the lock row */
bool orphan[2];             /* its connection is gone, its transaction not yet decided */
bool calling[2];            /* a call to the outside resource may be on its way */

byte term, term_of[2];      /* ghosts: custody changes so far, and under which one each engine works */

#define BIT(i)         (1 << (i))
#define BOTH           3
#define HOLDS(e)       (lock_holder == (e)+1 && lock_fence == fence[e])
#define UNLOCKED       (!proving[0] && !proving[1])
/* Free, or lapsed, or the one that this engine asks to replace. */
#define TAKEABLE(e)    (UNLOCKED && term < TERMS && (lock_holder == NOBODY || lapsed || HOLDS(e)))

#define IN_FLIGHT(p)   (plan[p].status == applying || plan[p].status == rolling_back)
#define TOUCHED(p)     (plan[p].journal[0] != undone || plan[p].journal[1] != undone)
#define IN_DOUBT(p,i)  (plan[p].journal[i] == intent || (plan[p].journal[i] == undo_intent && !UNDO_DOUBT_IN_PLACE))
#define IN_PLACE(p,i)  (plan[p].journal[i] == done || (plan[p].journal[i] == undo_intent && UNDO_DOUBT_IN_PLACE))
#define ALL_IN_PLACE(p) (IN_PLACE(p,0) && IN_PLACE(p,1))
#if PARTIAL_IS_SOME
#define PARTIAL(p)     (!IN_FLIGHT(p) && IN_PLACE(p,0) != IN_PLACE(p,1))
#else
#define PARTIAL(p)     ((plan[p].status == pending && TOUCHED(p)) || (plan[p].status == applied && !ALL_IN_PLACE(p)))
#endif

#define OTHER(p)       (1-(p))
#define NEWER(p,q)     (plan[p].has_seq && (!plan[q].has_seq || newest == p))
#define UNBLOCKED(p)   (!IN_FLIGHT(OTHER(p)) && !(PARTIAL_BLOCKS && PARTIAL(OTHER(p))))
#define MAY_APPLY(p)    (plan[p].status == pending && UNBLOCKED(p))
#define MAY_ROLLBACK(p) ((plan[p].status == applied || (plan[p].status == pending && TOUCHED(p))) \
                        && !(TOUCHED(OTHER(p)) && plan[p].has_seq && NEWER(OTHER(p), p)) && UNBLOCKED(p))

inline give_seq(p)     { if :: !plan[p].has_seq -> plan[p].has_seq = true; newest = p :: else fi }
inline drop_seq(p)     { plan[p].has_seq = false; newest = (plan[OTHER(p)].has_seq -> OTHER(p) : 0) }
inline come_to_rest(p, to) {
  plan[p].status = to; plan[p].claimed_from = pending; plan[p].fence = 0;
  if :: plan[p].status == pending && !TOUCHED(p) -> drop_seq(p)
     :: plan[p].status == applied && SEQ_AT_FINISH -> give_seq(p)
     :: else fi
}

/* ---- What must be true ------------------------------------------------------------------------------------------ */

/* The value of a cell according to the journal: that of the newest plan whose step is in place. */
#define FOLD(i) (IN_PLACE(0,i) && !(IN_PLACE(1,i) && NEWER(1,0)) -> 1 : (IN_PLACE(1,i) -> 2 : 0))

inline check_cell(i) {      /* G3, G6 */
  assert(IN_DOUBT(0,i) || IN_DOUBT(1,i) || data[i] == FOLD(i))
}
inline check_plan(p) {      /* G3: a plan that does not look partial is what its status says; G2: none is left in flight */
  assert(IN_FLIGHT(p) || PARTIAL(p) || plan[p].effect == (plan[p].status == applied -> BOTH : 0));
  assert(!IN_FLIGHT(p) || plan[p].fence == lock_fence)
}
inline check() {
  check_cell(0); check_cell(1); check_plan(0); check_plan(1);
  assert(!(IN_FLIGHT(0) && IN_FLIGHT(1)))
}
/* G1: only the present term writes. */
inline check_custody(e) { assert(!ASSERT_G1 || term_of[e] == term) }
/* G7: whoever is told that a plan is applied, or rolled back, is told the truth. */
inline report_success(p, down) {
  assert(plan[p].effect == (down -> 0 : BOTH) && plan[p].status == (down -> pending : applied))
}

/* ---- Acquire, recover, claim ------------------------------------------------------------------------------------ */

inline take(e)   { lock_fence++; term++; lock_holder = e+1; lapsed = false; fence[e] = lock_fence; term_of[e] = term }
inline recover(p) { if :: IN_FLIGHT(p) -> come_to_rest(p, plan[p].claimed_from) :: else fi }
inline put_in_flight(e, p) { plan[p].fence = fence[e]; if :: SEQ_AT_FINISH :: else -> give_seq(p) fi }
inline claim(e, p, down) {
  if :: !down && MAY_APPLY(p) -> plan[p].status = applying; put_in_flight(e, p)
     :: down && MAY_ROLLBACK(p) -> plan[p].claimed_from = plan[p].status; plan[p].status = rolling_back; put_in_flight(e, p)
     :: else fi
}
inline free_lock() {
  lock_holder = NOBODY; lapsed = false;
  if :: RELEASE_DELETES -> lock_fence = 0 :: else fi
}

/* ---- A checkpoint ----------------------------------------------------------------------------------------------- */

/* Goes to lost if the proof raises. */
inline prove(e, how) {
  if :: how == NO_PROOF
     :: how != NO_PROOF && HOLDS(e) -> proving[e] = (how != PLAIN_READ)
     :: how == NOT_RAISED && !HOLDS(e)
     :: (how == PLAIN_READ || how == LOCKING) && !HOLDS(e) -> goto lost
  fi
}
#define HOW(e) (group[e].move == succeed || group[e].move == fail -> FINISH_PROOF : \
               (group[e].move == claim_apply || group[e].move == claim_rollback -> CLAIM_PROOF : PROOF))

inline set_effect(p, i)   { data[i] = p+1; plan[p].effect = plan[p].effect | BIT(i) }
inline unset_effect(p, i) { data[i] = plan[p].image[i]; plan[p].effect = plan[p].effect & (BOTH - BIT(i)) }

inline write_step(p, i, to) {
  if :: EXTERNAL & BIT(i) ->
          if :: to == intent && (IMAGE_AGAIN || plan[p].journal[i] == undone) -> plan[p].image[i] = data[i] :: else fi
     :: else ->                                                 /* G4: exactly once */
          if :: to == done -> assert(!(plan[p].effect & BIT(i))); plan[p].image[i] = data[i]; set_effect(p, i)
             :: to == undone -> assert(plan[p].effect & BIT(i)); unset_effect(p, i)
          fi
  fi;
  plan[p].journal[i] = to;
  if :: to == undone -> plan[p].image[i] = 0 :: else fi
}
inline write_plan(e, p) {
  if :: group[e].steps & 1 -> write_step(p, 0, group[e].entry) :: else fi;
  if :: group[e].steps & 2 -> write_step(p, 1, group[e].entry) :: else fi;
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
    check_custody(e);
    if :: group[e].plan == 0 -> write_plan(e, 0) :: else -> write_plan(e, 1) fi;
    if :: group[e].release && HOLDS(e) -> free_lock() :: else fi;
    proving[e] = false;
    check()
  }
}

/* The plan rests where a successful run leaves it. */
#define ENDED(p, down)   (!PARTIAL(p) && ((down && plan[p].status == pending) || (!down && plan[p].status == applied)))
/* Goes to lost if the resource has seen a higher fence. */
inline show_fence(e, i)  { if :: resource_fence[i] > fence[e] -> goto lost :: else -> resource_fence[i] = fence[e] fi }

/* ---- An engine: one apply or rollback after another --------------------------------------------------------------- */

#define LEFT(p, down)    ((down && TOUCHED(p)) || (!down && !ALL_IN_PLACE(p)))
/* The first step not in place, or the last one that is in place or in doubt. */
#define NEXT(p, down)    (down -> (plan[p].journal[1] != undone -> 1 : 0) : (IN_PLACE(p,0) -> 1 : 0))
#define IS_LAST(p, down) ((down && (plan[p].journal[0] == undone || plan[p].journal[1] == undone)) \
                         || (!down && (IN_PLACE(p,0) || IN_PLACE(p,1))))
#define CLAIMED(e, p)    (IN_FLIGHT(p) && plan[p].fence == fence[e])

inline pack(e, p, its_steps, its_entry, its_move, its_release) {
  group[e].plan = p; group[e].steps = its_steps; group[e].entry = its_entry;
  group[e].move = its_move; group[e].release = its_release
}
/* The last steps of a plan carry the move that ends the claim, and that the release, unless the lock is kept. */
inline pack_steps(e, p, its_steps, its_entry, last) {
  if :: last -> if :: pack(e, p, its_steps, its_entry, succeed, true) :: pack(e, p, its_steps, its_entry, succeed, false) fi
     :: !(last) -> pack(e, p, its_steps, its_entry, stay, false)
  fi
}
inline forget(e) { fence[e] = 0; term_of[e] = 0; calling[e] = false; pack(e, 0, 0, undone, stay, false) }

inline acknowledge(e, p, down) { if :: group[e].move == succeed -> report_success(p, down) :: else fi; goto answered }

inline choose(p, down) {
  if :: p = 0 :: PLANS == 2 -> p = 1 fi;
  if :: down = false :: down = true fi
}

proctype Engine(byte e) {
  byte p, i;
  bool down;                            /* a rollback */

end_idle:
  atomic {
    TAKEABLE(e) -> choose(p, down);
    d_step { take(e); if :: RECOVER_APART :: else -> recover(0); recover(1); claim(e, p, down); check() fi };
    if :: RECOVER_APART :: !RECOVER_APART && CLAIMED(e, p) -> goto work
       :: !RECOVER_APART && !CLAIMED(e, p) -> goto release :: goto crash fi
  };
  d_step { check_custody(e); recover(0); recover(1); claim(e, p, down); check() };
  if :: CLAIMED(e, p) :: !CLAIMED(e, p) -> goto release fi;

work:                                   /* a plan is in flight under this engine's fence */
  atomic {
    if
    :: !LEFT(p, down) -> pack_steps(e, p, 0, undone, true)
    :: LEFT(p, down) -> i = NEXT(p, down);
       if
       :: (EXTERNAL & BIT(i)) -> i = 0; goto external
       :: !(EXTERNAL & BIT(i)) -> pack_steps(e, p, BIT(i), (down -> undone : done), IS_LAST(p, down))
       :: GROUPS && !EXTERNAL && !IS_LAST(p, down) -> pack_steps(e, p, BOTH, (down -> undone : done), true)
       fi; i = 0
    :: goto fails
    :: goto crash
    fi;
    prove(e, HOW(e))
  };

sent:                                   /* proved, and not yet committed */
  if
  :: atomic { commit(e); if :: acknowledge(e, p, down) :: goto unknown fi }
  :: atomic { proving[e] = false;       /* the server ended it, and said so */
       if :: CLAIMED(e, p) -> goto work :: else -> goto release fi }
  :: atomic { orphan[e] = true; goto unknown }
  fi;

answered:
  atomic {
    if
    :: group[e].move == succeed -> if :: group[e].release -> goto crash :: else -> goto between fi
    :: group[e].move == fail -> goto crash
    :: group[e].move == undo -> down = true; goto work
    :: group[e].move == claim_apply || group[e].move == claim_rollback -> if :: CLAIMED(e, p) -> goto work :: else -> goto release fi
    :: group[e].move == stay && (group[e].entry == intent || group[e].entry == undo_intent) -> calling[e] = true; goto effect
    :: else -> goto work
    fi
  };

fails:                                  /* a step failed: turn back under the same lease, or give up */
  atomic {
    if :: !down && TOUCHED(p) -> pack(e, p, 0, undone, undo, false)
       :: pack(e, p, 0, undone, fail, true) fi;
    prove(e, HOW(e)); goto sent
  };

between:                                /* the lock is held, and no plan is in flight */
  atomic {
    choose(p, down); pack(e, p, 0, undone, (down -> claim_rollback : claim_apply), false);
    prove(e, HOW(e)); goto sent
  };

external:                               /* step i, in three: intent, effect, outcome */
  i = NEXT(p, down);
  if :: !WAIT_OUT || !IN_DOUBT(p,i) || !calling[OTHER(e)] fi;
  atomic {
    if
    :: INSPECT && IN_DOUBT(p,i) ->
       if :: INSPECT == FENCED -> show_fence(e, i) :: else fi;
       if :: (plan[p].effect & BIT(i)) == (down -> 0 : BIT(i)) -> goto outcome :: else fi
    :: !(INSPECT && IN_DOUBT(p,i))
    fi;
    pack(e, p, BIT(i), (down -> undo_intent : intent), stay, false);
    prove(e, HOW(e)); goto sent
  };
effect:
  atomic {
    if :: RESOURCE_FENCES -> show_fence(e, i) :: else fi;
    d_step { if :: down -> unset_effect(p, i) :: else -> set_effect(p, i) fi; calling[e] = false; check() };
    if :: goto outcome :: goto crash fi
  };
outcome:
  atomic {
    pack_steps(e, p, BIT(i), (down -> undone : done), IS_LAST(p, down)); i = 0;
    prove(e, HOW(e)); goto sent
  };

unknown:                                /* was it committed? */
  atomic {
    if
    :: UNKNOWN == RETRY && !orphan[e] -> prove(e, HOW(e)); goto sent
    :: UNKNOWN == BELIEVE && !orphan[e] -> acknowledge(e, p, down)
    :: group[e].move == claim_apply || group[e].move == claim_rollback || group[e].move == fail -> goto release
    :: UNKNOWN == LOOK && TAKEABLE(e) ->
       if :: group[e].move == undo -> down = true :: else fi;
       d_step { take(e); recover(0); recover(1); claim(e, p, down); check() };
       if :: CLAIMED(e, p) -> goto work
          :: !CLAIMED(e, p) && ENDED(p, down) -> report_success(p, down); goto release
          :: !CLAIMED(e, p) && !ENDED(p, down) -> goto release
       fi
    :: UNKNOWN == LOOK && !HOLDS(e) && lock_holder != NOBODY ->         /* someone else has it: reading is enough */
       assert(!orphan[e]);
       if :: ENDED(p, down) -> report_success(p, down) :: else fi; goto crash
    :: goto crash
    fi
  };

release:
  atomic { if :: HOLDS(e) -> free_lock() :: else fi };
lost:
crash:
  atomic { !orphan[e] -> forget(e); p = 0; i = 0; down = false; goto end_idle }
}

/* ---- Everyone else ----------------------------------------------------------------------------------------------- */

/* Decides what is left of a connection that is gone. */
proctype Server() {
end:
  do
  :: atomic { orphan[0] && (!group[0].release || HOLDS(0)) -> orphan[0] = false; commit(0) }
  :: atomic { orphan[1] && (!group[1].release || HOLDS(1)) -> orphan[1] = false; commit(1) }
  :: d_step { orphan[0] -> orphan[0] = false; proving[0] = false }
  :: d_step { orphan[1] -> orphan[1] = false; proving[1] = false }
  od
}

/* Lets leases lapse, at any time, and renews them for engines that believe to hold the lock. A renewal does not wait for
 * a proof. */
#define RENEWABLE(e) (lapsed && fence[e] != 0 && (HOLDS(e) || !RENEWAL_COMPARES))
inline renew(e) { lapsed = false; assert(term_of[e] == term && HOLDS(e)) }       /* G2: nobody keeps another's lease alive */
proctype Time() {
end:
  do
  :: d_step { !lapsed && (lock_holder == 1 || lock_holder == 2) -> lapsed = true }
  :: d_step { RENEWABLE(0) -> renew(0) }
  :: d_step { RENEWABLE(1) -> renew(1) }
  od
}

/* Breaks a lock, whoever has it; or takes it with a reason, until released. Nothing is claimed. */
proctype Operator() {
end:
  do
  :: d_step { UNLOCKED && term < TERMS && lock_holder != NOBODY ->
       lock_fence++; term++; if :: BREAK_RECOVERS -> recover(0); recover(1) :: else fi; free_lock(); check() }
  :: d_step { UNLOCKED && term < TERMS && (lock_holder == NOBODY || lapsed) ->
       lock_fence++; term++; recover(0); recover(1); lock_holder = PERSON; lapsed = false; check() }
  :: d_step { lock_holder == PERSON -> free_lock() }
  od
}

init {
  d_step {
    plan[0].status = pending; plan[0].claimed_from = pending; plan[0].journal[0] = undone; plan[0].journal[1] = undone;
    plan[1].status = pending; plan[1].claimed_from = pending; plan[1].journal[0] = undone; plan[1].journal[1] = undone;
    group[0].entry = undone; group[0].move = stay; group[1].entry = undone; group[1].move = stay
  };
  atomic {
    run Engine(0); run Engine(1); run Server(); run Time();
    if :: OPERATOR -> run Operator() :: else fi
  }
}
