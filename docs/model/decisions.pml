/*
 * What is explored, and the decisions of the protocol. A default is what Belay does; a variant gives one macro another
 * value.
 */

/* ---- What is explored ------------------------------------------------------------------------------------------- */

#ifndef TERMS
#define TERMS 3                 /* how often custody changes, at most */
#endif
#ifndef PLANS
#define PLANS 2
#endif
#ifndef OPERATOR
#define OPERATOR 1              /* somebody breaks locks, and holds them */
#endif
#ifndef GROUPS
#define GROUPS 0                /* a checkpoint may have both steps of a plan */
#endif
#ifndef EXTERNAL
#define EXTERNAL 0              /* which steps act outside the database: 1 the first, 3 both */
#endif
#ifndef ONLY_DATA
#define ONLY_DATA 0             /* says nothing of a broken rule until data and journal contradict each other */
#endif

/* ---- Custody ---------------------------------------------------------------------------------------------------- */

#define NO_PROOF   0
#define PLAIN_READ 1            /* looks at the lock row, and does not lock it */
#define NOT_RAISED 2            /* locks it, if it is its own; if not, what follows takes effect all the same */
#define LOCKING    3            /* locks it against a change of its fence, or raises */
#ifndef PROOF
#define PROOF LOCKING           /* how a checkpoint begins */
#endif
#ifndef CLAIM_PROOF
#define CLAIM_PROOF PROOF       /* how a claim under a lock already held begins */
#endif
#ifndef FINISH_PROOF
#define FINISH_PROOF PROOF      /* how the checkpoint that ends a claim begins */
#endif
#ifndef RECOVER_APART
#define RECOVER_APART 0         /* recovery and claim are a second transaction, behind the one that acquires */
#endif
#ifndef BREAK_RECOVERS
#define BREAK_RECOVERS 1
#endif
#ifndef RELEASE_DELETES
#define RELEASE_DELETES 0       /* release deletes the lock row, so that fences start anew */
#endif
#ifndef RENEWAL_COMPARES
#define RENEWAL_COMPARES 1      /* a renewal demands its own holder and fence */
#endif

#define LOOK    0               /* acquire under a new fence, then read the journal */
#define RETRY   1               /* send it again */
#define BELIEVE 2               /* take it for committed */
#ifndef UNKNOWN
#define UNKNOWN LOOK            /* what to do about a commit whose answer is lost */
#endif

/* ---- Plans ------------------------------------------------------------------------------------------------------ */

#ifndef PARTIAL_IS_SOME
#define PARTIAL_IS_SOME 0       /* partial: some steps in place, but not all, whatever the status says */
#endif
#ifndef PARTIAL_BLOCKS
#define PARTIAL_BLOCKS 1        /* a partial plan keeps the tenant's others from being claimed */
#endif
#ifndef SEQ_AT_FINISH
#define SEQ_AT_FINISH 0         /* a plan gets its place in the order when it is applied, not at the first claim of its cycle */
#endif

/* ---- External steps --------------------------------------------------------------------------------------------- */

#ifndef WAIT_OUT
#define WAIT_OUT 1              /* before a step in doubt is touched, a former holder's call must have run out of time */
#endif
#ifndef RESOURCE_FENCES
#define RESOURCE_FENCES 0       /* the outside resource refuses a lower fence than it has seen */
#endif
#define NO_INSPECT   0
#define WITH_FENCE   1          /* and the resource remembers the fence that it was asked with */
#define WITHOUT_FENCE 2
#ifndef INSPECT
#define INSPECT NO_INSPECT      /* whether, and how, a step in doubt is looked up before it is run again */
#endif
#ifndef IMAGE_AGAIN
#define IMAGE_AGAIN 0           /* the before-image is captured at each attempt, not once */
#endif
#ifndef UNDO_DOUBT_IN_PLACE
#define UNDO_DOUBT_IN_PLACE 0   /* a step whose undo is in doubt counts as in place */
#endif
