// The C++ edge of the pass: where LLVM's C interface has no way in.
//
// Three things live here and no decisions about monitors do: registering the
// passes at LLVM's extension points, answering questions about loops,
// dominance, escape and scalar evolution, and splitting blocks. What is
// monitored, where and how is decided in Rust (src/).

#include "llvm-c/Core.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/Analysis/AliasAnalysis.h"
#include "llvm/Analysis/CaptureTracking.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/Analysis/ScalarEvolution.h"
#include "llvm/Analysis/ScalarEvolutionExpressions.h"
#include "llvm/Analysis/ValueTracking.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Operator.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/LCSSA.h"
#include "llvm/Transforms/Utils/LoopSimplify.h"
#include "llvm/Transforms/Utils/ModuleUtils.h"
#include "llvm/Transforms/Utils/ScalarEvolutionExpander.h"
#include <optional>

using namespace llvm;

namespace {

using QuietFn = int (*)(void *, LLVMBasicBlockRef);

// What was asked about a loop before: each answer looks at all its blocks, and
// every access in it asks.
struct LoopFacts {
  std::optional<bool> Counted, Dedicated;
  SmallDenseMap<QuietFn, bool, 2> Quiet;
};

struct Session {
  Function *F;
  DominatorTree *DT;
  LoopInfo *LI;
  ScalarEvolution *SE;
  DenseMap<Loop *, LoopFacts> Known;
};

} // namespace

extern "C" {
// Implemented in Rust.
void deadheat_ifr_prepare(LLVMModuleRef M);
int deadheat_ifr_analyse(LLVMValueRef F, void *S);
int deadheat_ifr_lower(LLVMModuleRef M, int is_lto);
int deadheat_ifr_wants(LLVMValueRef F);
}

namespace {

struct Prepare : PassInfoMixin<Prepare> {
  PreservedAnalyses run(Module &M, ModuleAnalysisManager &) {
    deadheat_ifr_prepare(wrap(&M));
    return PreservedAnalyses::none();
  }
  static bool isRequired() { return true; }
};

struct Analyse : PassInfoMixin<Analyse> {
  PreservedAnalyses run(Function &F, FunctionAnalysisManager &AM) {
    if (!deadheat_ifr_wants(wrap(&F)))
      return PreservedAnalyses::all();
    Session S{&F, &AM.getResult<DominatorTreeAnalysis>(F),
              &AM.getResult<LoopAnalysis>(F),
              &AM.getResult<ScalarEvolutionAnalysis>(F),
              {}};
    return deadheat_ifr_analyse(wrap(&F), &S) ? PreservedAnalyses::none()
                                              : PreservedAnalyses::all();
  }
  static bool isRequired() { return true; }
};

struct Lower : PassInfoMixin<Lower> {
  bool IsLTO;
  explicit Lower(bool IsLTO) : IsLTO(IsLTO) {}
  PreservedAnalyses run(Module &M, ModuleAnalysisManager &) {
    return deadheat_ifr_lower(wrap(&M), IsLTO) ? PreservedAnalyses::none()
                                               : PreservedAnalyses::all();
  }
  static bool isRequired() { return true; }
};

void addAnalyse(FunctionPassManager &FPM) {
  FPM.addPass(LoopSimplifyPass());
  FPM.addPass(LCSSAPass());
  FPM.addPass(Analyse());
}

void addAll(ModulePassManager &MPM, bool IsLTO) {
  FunctionPassManager FPM;
  addAnalyse(FPM);
  MPM.addPass(createModuleToFunctionPassAdaptor(std::move(FPM)));
  MPM.addPass(Lower(IsLTO));
}

} // namespace

extern "C" void deadheat_ifr_register(void *Builder) {
  PassBuilder &PB = *static_cast<PassBuilder *>(Builder);
  PB.registerPipelineStartEPCallback(
      [](ModulePassManager &MPM, OptimizationLevel) { MPM.addPass(Prepare()); });
  PB.registerVectorizerStartEPCallback(
      [](FunctionPassManager &FPM, OptimizationLevel) { addAnalyse(FPM); });
  PB.registerOptimizerLastEPCallback(
      [](ModulePassManager &MPM, OptimizationLevel, ThinOrFullLTOPhase) {
        addAll(MPM, false);
      });
  PB.registerFullLinkTimeOptimizationEarlyEPCallback(
      [](ModulePassManager &MPM, OptimizationLevel) { MPM.addPass(Prepare()); });
  PB.registerFullLinkTimeOptimizationLastEPCallback(
      [](ModulePassManager &MPM, OptimizationLevel) { addAll(MPM, true); });
  // For opt: -passes=deadheat-ifr-place stops before lowering, so that tests
  // can read the placement; -passes=deadheat-ifr does all of it.
  PB.registerPipelineParsingCallback(
      [](StringRef Name, ModulePassManager &MPM,
         ArrayRef<PassBuilder::PipelineElement>) {
        if (Name == "deadheat-ifr") {
          MPM.addPass(Prepare());
          addAll(MPM, false);
          return true;
        }
        if (Name == "deadheat-ifr-place") {
          MPM.addPass(Prepare());
          FunctionPassManager FPM;
          addAnalyse(FPM);
          MPM.addPass(createModuleToFunctionPassAdaptor(std::move(FPM)));
          return true;
        }
        return false;
      });
}

// ---- questions -----------------------------------------------------------

extern "C" int dh_block_dominates(void *S, LLVMBasicBlockRef A,
                                  LLVMBasicBlockRef B) {
  return static_cast<Session *>(S)->DT->dominates(unwrap(A), unwrap(B));
}

// The loop with this header may run for ever without doing anything that the
// language counts as progress.
extern "C" int dh_loop_may_hang(void *Sp, LLVMBasicBlockRef Header) {
  Session *S = static_cast<Session *>(Sp);
  Loop *L = S->LI->getLoopFor(unwrap(Header));
  if (!L || L->getHeader() != unwrap(Header))
    return 1;
  if (isMustProgress(L))
    return 0;
  return !S->SE->hasLoopInvariantBackedgeTakenCount(L);
}

// The value changes from turn to turn of the innermost loop around the block.
extern "C" int dh_varies_in_loop(void *Sp, LLVMValueRef V, LLVMBasicBlockRef B) {
  Session *S = static_cast<Session *>(Sp);
  Loop *L = S->LI->getLoopFor(unwrap(B));
  auto *I = dyn_cast<Instruction>(unwrap(V));
  return L && I && L->contains(I);
}

// Splits a pointer into base + index * scale + offset. Index is null when the
// offset is constant.
extern "C" void dh_decompose(LLVMValueRef Ptr, LLVMModuleRef M,
                             LLVMValueRef *Base, LLVMValueRef *Index,
                             int64_t *Scale, int64_t *Offset) {
  const DataLayout &DL = unwrap(M)->getDataLayout();
  Value *V = unwrap(Ptr);
  Value *Idx = nullptr;
  int64_t Sc = 0, Off = 0;
  for (int Depth = 0; Depth < 16; ++Depth) {
    auto *GEP = dyn_cast<GEPOperator>(V);
    if (!GEP)
      break;
    unsigned Bits = DL.getIndexTypeSizeInBits(GEP->getType());
    SmallMapVector<Value *, APInt, 4> Var;
    APInt Const(Bits, 0);
    if (Bits != 64 || !GEP->collectOffset(DL, Bits, Var, Const))
      break;
    if (Var.size() > 1 || (Var.size() == 1 && Idx))
      break;
    if (Var.size() == 1) {
      if (!Var.front().first->getType()->isIntegerTy() ||
          Var.front().first->getType()->getIntegerBitWidth() > 64)
        break;
      Idx = Var.front().first;
      Sc = Var.front().second.getSExtValue();
    }
    Off += Const.getSExtValue();
    V = GEP->getPointerOperand();
  }
  *Base = wrap(V);
  *Index = Idx ? wrap(Idx) : nullptr;
  *Scale = Sc;
  *Offset = Off;
}

// Counters that --coverage and -fprofile-generate add. They are not atomic unless
// asked for (-fprofile-update=atomic), and nobody wrote the race.
static bool isProfileCounter(const GlobalVariable &G) {
  StringRef Name = G.getName();
  return Name.starts_with("__llvm_gcov") || Name.starts_with("__llvm_gcda") ||
         Name.starts_with("__prof");
}

// Whether the address of a thread-local variable stays out of sight of other
// threads, as far as this module shows. One with very many uses is taken at its
// word: each access asks.
static bool staysInThread(const GlobalVariable *Variable) {
  constexpr unsigned MostUses = 64;
  if (Variable->hasNUsesOrMore(MostUses))
    return true;
  for (const User *U : Variable->users()) {
    auto *I = dyn_cast<IntrinsicInst>(U);
    if (I && I->getIntrinsicID() == Intrinsic::threadlocal_address &&
        PointerMayBeCaptured(I, /*ReturnCaptures=*/true, 200))
      return false;
  }
  return true;
}

// No other thread can have this pointer: a local variable or fresh block whose
// address stays in the function, memory that nobody writes, or thread-local.
extern "C" int dh_private(LLVMValueRef Ptr, int FollowCaptures) {
  const Value *O = getUnderlyingObject(unwrap(Ptr), 12);
  if (auto *I = dyn_cast<IntrinsicInst>(O))
    if (I->getIntrinsicID() == Intrinsic::threadlocal_address)
      O = I->getArgOperand(0);
  if (auto *G = dyn_cast<GlobalVariable>(O))
    return G->isConstant() || isProfileCounter(*G) ||
           (G->isThreadLocal() && staysInThread(G));
  if (!FollowCaptures)
    return 0;
  if (isa<AllocaInst>(O) || isNoAliasCall(O))
    return !PointerMayBeCaptured(O, /*ReturnCaptures=*/true, 200);
  if (auto *A = dyn_cast<Argument>(O))
    return A->hasByValAttr() && !PointerMayBeCaptured(O, true, 200);
  return 0;
}

extern "C" uint64_t dh_store_size(LLVMModuleRef M, LLVMTypeRef T) {
  TypeSize Size = unwrap(M)->getDataLayout().getTypeStoreSize(unwrap(T));
  return Size.isScalable() ? 0 : Size.getFixedValue();
}

extern "C" int dh_is_debug_or_lifetime(LLVMValueRef I) {
  auto *Call = dyn_cast<IntrinsicInst>(unwrap(I));
  return Call && (isa<DbgInfoIntrinsic>(Call) || Call->isLifetimeStartOrEnd() ||
                  Call->isAssumeLikeIntrinsic());
}

// Static attributes of a call that matter: bit 0 no synchronisation, bit 1
// returns, bit 2 does not unwind, bit 3 touches no memory.
extern "C" unsigned dh_call_facts(LLVMValueRef I) {
  auto *Call = cast<CallBase>(unwrap(I));
  unsigned Facts = 0;
  if (Call->hasFnAttr(Attribute::NoSync))
    Facts |= 1;
  if (Call->hasFnAttr(Attribute::WillReturn))
    Facts |= 2;
  if (Call->doesNotThrow())
    Facts |= 4;
  if (Call->doesNotAccessMemory())
    Facts |= 8;
  return Facts;
}

extern "C" LLVMTypeRef dh_byval_type(LLVMValueRef I, unsigned Arg) {
  Type *T = cast<CallBase>(unwrap(I))->getParamByValType(Arg);
  return T ? wrap(T) : nullptr;
}

extern "C" int dh_can_insert_after(LLVMValueRef I) {
  auto *Inst = cast<Instruction>(unwrap(I));
  if (Inst->isTerminator() || isa<PHINode>(Inst))
    return 0;
  if (auto *Call = dyn_cast<CallInst>(Inst))
    return !Call->isMustTailCall();
  return 1;
}

extern "C" int dh_is_musttail(LLVMValueRef I) {
  auto *Call = dyn_cast<CallInst>(unwrap(I));
  return Call && Call->isMustTailCall();
}

// ---- ranges --------------------------------------------------------------

namespace {

// `Rows` rows of `Row` bytes, `Stride` bytes apart, from `Lo` on; one row has
// Stride null. All are valid at the preheader of the loop it was made for.
struct Shape {
  const SCEV *Lo, *Row, *Stride, *Rows;
};

const SCEV *trips(ScalarEvolution &SE, Loop *L, Type *I64) {
  const SCEV *Taken = SE.getBackedgeTakenCount(L);
  if (isa<SCEVCouldNotCompute>(Taken) ||
      SE.getTypeSizeInBits(Taken->getType()) > 64)
    return nullptr;
  return SE.getAddExpr(SE.getNoopOrZeroExtend(Taken, I64), SE.getOne(I64));
}

bool allQuiet(Session *S, Loop *L, QuietFn Quiet, void *Context) {
  auto [It, Fresh] = S->Known[L].Quiet.try_emplace(Quiet, true);
  if (Fresh)
    for (BasicBlock *B : L->blocks())
      if (!Quiet(Context, wrap(B))) {
        It->second = false;
        break;
      }
  return It->second;
}

bool countedByLatch(Session *S, Loop *L) {
  std::optional<bool> &Counted = S->Known[L].Counted;
  if (!Counted)
    Counted = L->getLoopPreheader() && L->getLoopLatch() &&
              L->getExitingBlock() == L->getLoopLatch() &&
              S->SE->hasLoopInvariantBackedgeTakenCount(L);
  return *Counted;
}

bool hasDedicatedExits(Session *S, Loop *L) {
  std::optional<bool> &Dedicated = S->Known[L].Dedicated;
  if (!Dedicated)
    Dedicated = L->hasDedicatedExits();
  return *Dedicated;
}

// Fewer rows than this are not worth a call.
constexpr uint64_t FewRows = 8;

} // namespace

// The bytes that `Access` touches over all iterations of the loops around it,
// from the innermost outwards as long as `Quiet` says a loop has no
// synchronisation and the loop's trip count is known before it. On success
// the values are expanded at the end of a preheader, returned with them.
extern "C" int dh_range_before(void *Sp, LLVMValueRef Access, LLVMValueRef Ptr,
                               uint64_t Size, QuietFn Quiet, void *Context,
                               LLVMValueRef *Lo,
                               LLVMValueRef *Row, LLVMValueRef *Stride,
                               LLVMValueRef *Rows, LLVMValueRef *At) {
  Session *S = static_cast<Session *>(Sp);
  ScalarEvolution &SE = *S->SE;
  auto *Inst = cast<Instruction>(unwrap(Access));
  Value *P = unwrap(Ptr);
  Loop *L = S->LI->getLoopFor(Inst->getParent());
  if (!L || !SE.isSCEVable(P->getType()))
    return 0;
  Type *I64 = Type::getInt64Ty(Inst->getContext());
  const SCEV *Address = SE.getSCEV(P);
  if (SE.getTypeSizeInBits(Address->getType()) != 64)
    return 0;
  const SCEV *Bytes = SE.getConstant(I64, Size);
  Shape Now{Address, Bytes, nullptr, nullptr};
  Shape Best = Now;
  BasicBlock *BestAt = nullptr;
  bool Walks = false;
  BasicBlock *Runs = Inst->getParent();
  SCEVExpander Expander(SE, "ifr");
  for (; L; L = L->getParentLoop()) {
    if (!countedByLatch(S, L) || !allQuiet(S, L, Quiet, Context) ||
        !S->DT->dominates(Runs, L->getLoopLatch()))
      break;
    const SCEV *N = trips(SE, L, I64);
    if (!N)
      break;
    if (!SE.isLoopInvariant(Now.Row, L) ||
        (Now.Stride && (!SE.isLoopInvariant(Now.Stride, L) ||
                        !SE.isLoopInvariant(Now.Rows, L))))
      break;
    if (!SE.isLoopInvariant(Now.Lo, L)) {
      Walks = true;
      auto *Rec = dyn_cast<SCEVAddRecExpr>(Now.Lo);
      if (!Rec || Rec->getLoop() != L || !Rec->isAffine())
        break;
      const SCEV *Step = Rec->getStepRecurrence(SE);
      if (SE.getTypeSizeInBits(Step->getType()) != 64)
        break;
      const SCEV *Start = Rec->getStart();
      if (SE.isKnownNegative(Step)) {
        const SCEV *Taken = SE.getMinusSCEV(N, SE.getOne(I64));
        Start = SE.getAddExpr(Start, SE.getMulExpr(Step, Taken));
        Step = SE.getNegativeSCEV(Step);
      } else if (!SE.isKnownPositive(Step) && Step != Now.Row) {
        // The sign of a run-time stride decides where the range begins.
        if (!isa<SCEVConstant>(Step) && !SE.isKnownNonNegative(Step))
          break;
      }
      bool Dense = Step == Now.Row;
      if (auto *StepC = dyn_cast<SCEVConstant>(Step))
        if (auto *RowC = dyn_cast<SCEVConstant>(Now.Row))
          Dense = StepC->getAPInt().ule(RowC->getAPInt());
      if (Dense) {
        // The row grows; rows above it stay as far apart as they were.
        const SCEV *Grown = SE.getAddExpr(
            Now.Row, SE.getMulExpr(Step, SE.getMinusSCEV(N, SE.getOne(I64))));
        if (Now.Stride && Now.Stride == Grown)
          Now = {Start, SE.getMulExpr(Now.Rows, Grown), nullptr, nullptr};
        else
          Now = {Start, Grown, Now.Stride, Now.Rows};
      } else if (!Now.Stride) {
        Now = {Start, Now.Row, Step, N};
      } else if (SE.getMulExpr(Now.Stride, Now.Rows) == Step) {
        Now = {Start, Now.Row, Now.Stride, SE.getMulExpr(Now.Rows, N)};
      } else {
        break;
      }
    }
    BasicBlock *Pre = L->getLoopPreheader();
    Instruction *Where = Pre->getTerminator();
    if (!Expander.isSafeToExpandAt(Now.Lo, Where) ||
        !Expander.isSafeToExpandAt(Now.Row, Where) ||
        (Now.Stride && (!Expander.isSafeToExpandAt(Now.Stride, Where) ||
                        !Expander.isSafeToExpandAt(Now.Rows, Where))))
      break;
    // A few elements that do not join into rows gain nothing over one monitor
    // each.
    bool Worth = true;
    if (Now.Stride)
      if (auto *RowC = dyn_cast<SCEVConstant>(Now.Row))
        if (auto *RowsC = dyn_cast<SCEVConstant>(Now.Rows))
          Worth = RowC->getAPInt().uge(64) || RowsC->getAPInt().uge(FewRows);
    // A fixed address is the data flow's business.
    if (Worth && Walks) {
      Best = Now;
      BestAt = Pre;
    }
    Runs = Pre;
  }
  if (!BestAt)
    return 0;
  Instruction *Where = BestAt->getTerminator();
  Type *PtrTy = P->getType();
  Value *LoV = Expander.expandCodeFor(Best.Lo, PtrTy, Where->getIterator());
  IRBuilder<> B(Where);
  *Lo = wrap(B.CreatePtrToInt(LoV, I64));
  *Row = wrap(Expander.expandCodeFor(Best.Row, I64, Where->getIterator()));
  *Stride = nullptr;
  *Rows = nullptr;
  if (Best.Stride) {
    *Stride = wrap(Expander.expandCodeFor(Best.Stride, I64, Where->getIterator()));
    *Rows = wrap(Expander.expandCodeFor(Best.Rows, I64, Where->getIterator()));
  }
  *At = wrap(Where);
  return 1;
}

// For a loop whose trip count is not known before it: the first byte touched,
// expanded in the preheader. The caller pairs it with the last address, which
// is `Ptr` itself where the loop is left. Only dense, upward walks by an access
// that runs before every way out.
extern "C" int dh_range_after(void *Sp, LLVMValueRef Access, LLVMValueRef Ptr,
                              uint64_t Size, QuietFn Quiet, void *Context,
                              LLVMValueRef *First,
                              LLVMBasicBlockRef *Exits, unsigned MaxExits) {
  Session *S = static_cast<Session *>(Sp);
  ScalarEvolution &SE = *S->SE;
  auto *Inst = cast<Instruction>(unwrap(Access));
  Value *P = unwrap(Ptr);
  Loop *L = S->LI->getLoopFor(Inst->getParent());
  if (!L || !L->getLoopPreheader() || !isa<Instruction>(P))
    return 0;
  auto *Rec = dyn_cast<SCEVAddRecExpr>(SE.getSCEV(P));
  if (!Rec || Rec->getLoop() != L || !Rec->isAffine() || !hasDedicatedExits(S, L))
    return 0;
  auto *Step = dyn_cast<SCEVConstant>(Rec->getStepRecurrence(SE));
  if (!Step || Step->getAPInt() != Size)
    return 0;
  SmallVector<BasicBlock *, 4> Exiting;
  L->getExitingBlocks(Exiting);
  for (BasicBlock *E : Exiting)
    if (!S->DT->dominates(Inst->getParent(), E))
      return 0;
  if (!S->DT->dominates(Inst->getParent(), L->getLoopLatch()))
    return 0;
  SmallVector<BasicBlock *, 4> Out;
  L->getUniqueExitBlocks(Out);
  if (Out.empty() || Out.size() > MaxExits)
    return 0;
  for (BasicBlock *B : Out)
    if (B->isEHPad() || !S->DT->dominates(cast<Instruction>(P)->getParent(), B))
      return 0;
  if (!allQuiet(S, L, Quiet, Context))
    return 0;
  Instruction *Where = L->getLoopPreheader()->getTerminator();
  SCEVExpander Expander(SE, "ifr");
  if (!Expander.isSafeToExpandAt(Rec->getStart(), Where))
    return 0;
  Value *V = Expander.expandCodeFor(Rec->getStart(), P->getType(), Where->getIterator());
  IRBuilder<> B(Where);
  *First = wrap(B.CreatePtrToInt(V, Type::getInt64Ty(Inst->getContext())));
  for (unsigned I = 0; I < Out.size(); ++I)
    Exits[I] = wrap(Out[I]);
  return static_cast<int>(Out.size());
}

// ---- changes -------------------------------------------------------------

// `if (Cond) { <here> }` before `At`; returns the end of the new block.
extern "C" LLVMValueRef dh_split_if(LLVMValueRef Cond, LLVMValueRef At,
                                    int Unlikely) {
  auto *Inst = cast<Instruction>(unwrap(At));
  MDBuilder MDB(Inst->getContext());
  MDNode *W = Unlikely ? MDB.createBranchWeights(1, 2000) : nullptr;
  return wrap(SplitBlockAndInsertIfThen(unwrap(Cond), Inst, false, W));
}

// A block in front of `At` that runs while the thread's word is not 0; under
// `cap` that word is 0, and the block runs while the other word is not and the
// site's share, at `Place`, is not used up. Gives back the block's end and, in
// `Now`, the word. `Tls` are the eight words of the thread-local block.
extern "C" LLVMValueRef dh_guard(LLVMValueRef At, LLVMValueRef Tls, uint64_t Place,
                                 unsigned Key, unsigned Shares, unsigned Capped,
                                 LLVMValueRef *Now) {
  auto *Inst = cast<Instruction>(unwrap(At));
  BasicBlock *Head = Inst->getParent();
  BasicBlock *After = SplitBlock(Head, Inst);
  LLVMContext &C = Inst->getContext();
  Function *F = Head->getParent();
  BasicBlock *Wants = BasicBlock::Create(C, "", F, After);
  BasicBlock *Share = BasicBlock::Create(C, "", F, After);
  BasicBlock *Inside = BasicBlock::Create(C, "", F, After);
  MDBuilder MDB(C);
  Type *I64 = Type::getInt64Ty(C);
  Value *State = unwrap(Tls);
  Head->getTerminator()->eraseFromParent();
  IRBuilder<> B(Head);
  B.SetCurrentDebugLocation(Inst->getDebugLoc());
  auto Word = [&](unsigned Index, Type *Ty) {
    return B.CreateAlignedLoad(Ty, B.CreateConstGEP1_64(I64, State, Index), Align(8));
  };
  Value *Plain = Word(0, I64);
  // 0: no monitors are wanted. 1: there is a cap, and the word is elsewhere.
  B.CreateCondBr(B.CreateIsNotNull(Plain), Wants, After, MDB.createBranchWeights(16, 1));
  B.SetInsertPoint(Wants);
  B.CreateCondBr(B.CreateICmpEQ(Plain, B.getInt64(1)), Share, Inside, MDB.createBranchWeights(1, 16));
  B.SetInsertPoint(Share);
  Value *Under = Word(Capped, I64);
  Value *Table = Word(Shares, PointerType::get(C, 0));
  Value *Used = B.CreateAlignedLoad(I64, B.CreateConstGEP1_64(I64, Table, Place), Align(8));
  B.CreateCondBr(B.CreateICmpULT(Used, Word(Key, I64)), Inside, After);
  B.SetInsertPoint(Inside);
  PHINode *Phi = B.CreatePHI(I64, 2, "ifr.now");
  Phi->addIncoming(Plain, Wants);
  Phi->addIncoming(Under, Share);
  *Now = wrap(Phi);
  return wrap(B.CreateBr(After));
}

// Brings the fixed local variables to the start of the function. A check cuts the
// block it is in, and behind the cut they would no longer be in the first block:
// variable in size to the code generator, and broken by passes that copy blocks.
extern "C" void dh_gather_variables(LLVMValueRef Fn) {
  BasicBlock &Entry = cast<Function>(unwrap(Fn))->getEntryBlock();
  auto Top = Entry.getFirstNonPHIOrDbgOrAlloca();
  for (auto It = Top; It != Entry.end();) {
    auto *A = dyn_cast<AllocaInst>(&*It++);
    if (A && isa<ConstantInt>(A->getArraySize()))
      A->moveBefore(Top);
  }
}

extern "C" LLVMValueRef dh_first_insertion(LLVMBasicBlockRef B) {
  BasicBlock *Block = unwrap(B);
  auto It = Block->isEntryBlock() ? Block->getFirstNonPHIOrDbgOrAlloca()
                                  : Block->getFirstInsertionPt();
  return It == unwrap(B)->end() ? nullptr : wrap(&*It);
}

extern "C" void dh_set_location(LLVMValueRef I, LLVMValueRef From, LLVMValueRef F) {
  auto *Inst = cast<Instruction>(unwrap(I));
  auto *Source = From ? dyn_cast<Instruction>(unwrap(From)) : nullptr;
  if (Source && Source->getDebugLoc()) {
    Inst->setDebugLoc(Source->getDebugLoc());
    return;
  }
  if (DISubprogram *SP = cast<Function>(unwrap(F))->getSubprogram())
    Inst->setDebugLoc(DILocation::get(Inst->getContext(), SP->getLine(), 0, SP));
}

// Keeps a global that nothing refers to.
extern "C" void dh_keep(LLVMModuleRef M, LLVMValueRef G) {
  appendToCompilerUsed(*unwrap(M), {cast<GlobalValue>(unwrap(G))});
}

// An instrumented function writes the shadow: what was inferred about its
// memory no longer holds.
extern "C" void dh_forget_memory_facts(LLVMValueRef Fn) {
  auto *F = cast<Function>(unwrap(Fn));
  F->removeFnAttr(Attribute::Memory);
  F->removeFnAttr(Attribute::Speculatable);
  for (Argument &A : F->args()) {
    F->removeParamAttr(A.getArgNo(), Attribute::ReadNone);
    F->removeParamAttr(A.getArgNo(), Attribute::ReadOnly);
    F->removeParamAttr(A.getArgNo(), Attribute::WriteOnly);
  }
}

extern "C" void dh_mark_placeholder(LLVMValueRef Fn) {
  auto *F = cast<Function>(unwrap(Fn));
  F->setMemoryEffects(MemoryEffects::inaccessibleMemOnly());
  F->addFnAttr(Attribute::NoUnwind);
  F->addFnAttr(Attribute::WillReturn);
}
