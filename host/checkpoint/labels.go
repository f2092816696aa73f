package checkpoint

// Labels of the steps at which a test can make the store fail or die; see
// internal/fault.
const (
	labelBegin         = "checkpoint.begin"
	labelPagesCreate   = "checkpoint.pages.create"
	labelManifestWrite = "checkpoint.manifest.write"
	labelPublishRename = "checkpoint.publish.rename"
	labelImport        = "checkpoint.import"
	labelImportCreate  = "checkpoint.import.create"
	labelImportWrite   = "checkpoint.import.write"

	labelStateSync  = "checkpoint.durable.state.fsync"
	labelPagesSync  = "checkpoint.durable.pages.fsync"
	labelDirSync    = "checkpoint.durable.dir.fsync"
	labelParentSync = "checkpoint.durable.parent.fsync"

	labelRewriteWrite   = "checkpoint.rewrite.write"
	labelRewriteSync    = "checkpoint.rewrite.fsync"
	labelRewriteRename  = "checkpoint.rewrite.rename"
	labelRewriteDirSync = "checkpoint.rewrite.dir.fsync"

	labelRemoveRename = "checkpoint.remove.rename"
	labelRemoveUnlink = "checkpoint.remove.unlink"
	labelLostWrite    = "checkpoint.lost.write"
	labelLostRename   = "checkpoint.lost.rename"

	labelObjectCreate  = "checkpoint.object.create"
	labelObjectWrite   = "checkpoint.object.write"
	labelObjectSync    = "checkpoint.object.fsync"
	labelObjectRename  = "checkpoint.object.rename"
	labelObjectDirSync = "checkpoint.object.dir.fsync"
	labelObjectRemove  = "checkpoint.object.remove.rename"
	labelCompactUnlink = "checkpoint.compact.unlink"

	labelBaseBegin         = "checkpoint.base.begin"
	labelBaseManifestWrite = "checkpoint.base.manifest.write"
	labelBasePublishRename = "checkpoint.base.publish.rename"
	labelBaseImport        = "checkpoint.base.import"
	labelBaseRAMSync       = "checkpoint.base.durable.ram.fsync"
	labelBaseStateSync     = "checkpoint.base.durable.state.fsync"
	labelBaseDirSync       = "checkpoint.base.durable.dir.fsync"
	labelBaseParentSync    = "checkpoint.base.durable.parent.fsync"
	labelBaseRemoveRename  = "checkpoint.base.remove.rename"
)

// Labels lists the fault labels of this package, for tests that kill a host
// at each of them.
func Labels() []string {
	return []string{
		labelBegin, labelPagesCreate, labelManifestWrite, labelPublishRename,
		labelImport, labelImportCreate, labelImportWrite,
		labelStateSync, labelPagesSync, labelDirSync, labelParentSync,
		labelRewriteWrite, labelRewriteSync, labelRewriteRename, labelRewriteDirSync,
		labelRemoveRename, labelRemoveUnlink, labelLostWrite, labelLostRename,
		labelObjectCreate, labelObjectWrite, labelObjectSync, labelObjectRename, labelObjectDirSync, labelObjectRemove, labelCompactUnlink,
		labelBaseBegin, labelBaseManifestWrite, labelBasePublishRename, labelBaseImport,
		labelBaseRAMSync, labelBaseStateSync, labelBaseDirSync, labelBaseParentSync,
		labelBaseRemoveRename,
	}
}
